#!/bin/sh
# Train a head on your own texts, measure it, and serve the model with it: examples/learn_and_serve.sh MODEL TEXTS
set -eu
augury learn -m "$1" -f "$2" -o head.gguf
augury bench drafters -m "$1" -md head.gguf -p "def main(" -n 128 --temp 0
augury serve -m "$1" -md head.gguf --port 8080
