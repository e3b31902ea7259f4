"""The contracts of every drafter. docs/write-a-drafter.md says the same at length."""

from __future__ import annotations

from augury.testing.contract import Contract

_GUIDE = "docs/write-a-drafter.md"

BEGIN = Contract("`begin` returns None, or an iterator that comes to an end.", "augury.Drafter.begin")
HELD = Contract("`n_held` returns how many of the first tokens it can do without, 0 to all.", "augury.Drafter.n_held")
LIMIT = Contract("A draft has at most `limit` tokens.", f"augury.Drafter.draft, and `limit` in {_GUIDE}")
VOCABULARY = Contract("A draft's tokens are tokens of the target.", f"augury.Drafter.draft, and `limit` in {_GUIDE}")
DRAFT = Contract("`draft` returns a Draft whose parts fit each other.", "augury.drafter.Draft")
HISTORY = Contract("A drafter never writes into `history`.", f"augury.Drafter, and `history` in {_GUIDE}")
REFERENCE = Contract(
    "A drafter keeps no reference to `history` beyond the request.", f"augury.Drafter, and `history` in {_GUIDE}"
)
ERROR = Contract("A drafter that knows nothing declines; its methods raise nothing.", f"`limit` in {_GUIDE}")
TEACHER_FORCED = Contract("`teacher_forced` returns (n,) int32 tokens, or None.", "augury.Drafter.teacher_forced")
REPRODUCIBLE = Contract(
    "The same calls give the same drafts; random numbers are seeded, clocks not asked.", f"“State” in {_GUIDE}"
)
SCOPE = Contract("What a drafter learns lives no longer than its `scope` says.", "augury.DrafterTraits.scope")
TOGETHER = Contract("`draft_together` drafts what `draft` does slot by slot.", "augury.Drafter.draft_together")
AHEAD = Contract(
    "Drafting ahead leaves no trace but the draft, which is what `draft` gives once the guess is history.",
    "augury.DrafterTraits.drafts_ahead",
)
PACE = Contract("A drafter that `is_paced` ends its drafts where `Ask.pace` says.", "augury.drafter.Pace")
OPTIONS = Contract(
    "Options have defaults inside their bounds, and refuse with an OptionError what is outside.", "augury.plugin.option"
)
BOUNDS = Contract("A drafter works, or refuses with an AuguryError, at the bounds of its options.", f"“Options” in {_GUIDE}")
CHOSEN = Contract("A drafter that was chosen can be made, or says in an AuguryError why not.", "augury.Drafter")
LOSSLESS = Contract("The output is that of plain decoding, to the bit.", "docs/architecture.md, “Why the output cannot change”")
COUNTS = Contract("Statistics add up: emitted = rounds + accepted, and so on.", "augury.plugin.Summary")
DISTRIBUTION = Contract(
    "Verified by rejection the output keeps the target's distribution: `probabilities` are what each token was drawn from.",
    f"“A draft” in {_GUIDE}",
)
