"""Measuring speed: drafters against plain decoding, passes, another program in turns with augury, and starts.

Drafters: `paired_runs` and their `pair_stats`, shown as a table and by `page`; `commands.tune` chooses among them. Passes:
`timing` of a model or a `server_runner`, in turns by `abba`. All of them: `workload` and `machine`. The commands are in
`commands`.
"""
