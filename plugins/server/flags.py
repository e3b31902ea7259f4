"""The flags of `augury serve` that no other command has."""

from __future__ import annotations

from attrs import frozen

from augury.options import option


@frozen
class ServerFlags:
    """Those that hold for all models."""

    host: str = option("127.0.0.1", help="addresses to listen on, separated by commas")
    port: int = option(8080, ge=0, le=65535, help="port to listen on; 0: any free port")
    config: str | None = option(
        None,
        aliases=["models-preset"],
        help="TOML file of flags, with a table [models.NAME] of flags for each model; an .ini file is read as llama.cpp does",
    )
    models_dir: str | None = option(None, help="folder whose models can be asked for")
    manage_models: bool = option(
        False, help="serve all models on this machine, and let clients download more, remove them, and give them other names"
    )
    no_models_autoload: bool = option(False, help="load models only when clients ask for it at /models/load")
    models_max: int = option(4, ge=0, help="how many models are loaded at a time; 0: as many as memory has room for")
    strict_model: bool = option(False, help="refuse requests for other names where there is one model, too")
    strict_fields: bool = option(False, help="refuse other servers' fields, also where their value means nothing here")
    api_key: str | None = option(None, help="keys, separated by commas; a client must send one of them")
    api_key_file: str | None = option(None, help="more keys, one on each line; a line that begins with # is a comment")
    cors_origins: str | None = option(
        None, help="web pages of these origins, separated by commas, may ask; * for all, localhost for those of this machine"
    )
    timeout: int = option(3600, ge=1, aliases=["to"], help="seconds that a request may take, waiting included")
    sse_ping_interval: int = option(
        30, ge=-1, help="seconds after which a stream that has nothing to send sends a keep-alive; -1: never"
    )
    max_body_size: int = option(16, ge=1, help="MiB that the body of a request may have")
    shutdown_timeout: int = option(
        30, ge=0, help="seconds that running requests may go on after a signal to end; then they are cancelled"
    )
    props: bool = option(False, help="allow properties to be changed at /props")
    metrics: bool = option(False, help="count for Prometheus, at /metrics")
    no_ui: bool = option(False, aliases=["no-webui"], help="leave out the page at /")
    ssl_key_file: str | None = option(None, help="serve HTTPS with this private key (PEM)")
    ssl_cert_file: str | None = option(None, help="serve HTTPS with this certificate (PEM)")


@frozen
class ServedModelFlags:
    """Those that a model may have in its own table of --config."""

    alias: str | None = option(
        None, aliases=["a"], help="names of the model, separated by commas; without it the name that -m gives"
    )
    tags: str | None = option(None, help="words about the model for clients that list models, separated by commas")
    dedup_cache_models: bool = option(False, help="leave the model's file out of the list of --manage-models")
    max_queue: int = option(256, ge=0, help="how many requests may wait for a slot; further ones get 429")
    replicas: str | None = option(
        None, help="processes that each hold the model, kept by Ray Serve: how many, or 1-4 for as many as are needed"
    )
    ray: str = option("local", help="with --replicas: the Ray cluster, HOST:PORT, ray://HOST:PORT, auto or local")
    slots: bool = option(True, help="answer /slots, which shows what each slot does")
    no_slots: bool = option(False, help="do not answer /slots")
    slot_save_path: str | None = option(None, help="folder that slots may be saved to")
    collect: str | None = option(
        None, help="folder that keeps the tokens of the newest requests and answers, 64 MiB, for augury learn -f"
    )
    collect_disk: int = option(
        4, ge=0, help="with --collect: GB of these requests' hidden states, which augury learn need not compute; 0: none"
    )
    learn: bool = option(False, help="with --collect: train a head on what is kept, while nobody asks")
    learn_hours: int = option(8, ge=1, help="with --learn: hours a day in which it may train")
    sleep_idle_seconds: int = option(
        -1, ge=-1, help="seconds without a request after which the model is unloaded until the next one; -1: never"
    )
    reasoning: str = option(
        "auto",
        choices=("on", "off", "auto"),
        aliases=["rea"],
        help="whether models think: the variable enable_thinking of chat templates; auto leaves it to the template",
    )
    reasoning_effort: str = option("default", help="how hard they think: the variable of that name, where templates know it")
    reasoning_budget: int = option(-1, ge=-1, help="after how many tokens thinking ends; -1: without a limit")
    pooling: str | None = option(
        None,
        choices=("none", "mean", "cls", "last"),
        help="how embeddings are pooled in requests that do not say; without it as the model's file says",
    )
