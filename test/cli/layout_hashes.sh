#!/usr/bin/env bash
# layout_hashes.sh - one hash in every layout, in small: with --reproducible layout the suite's cells of layouts.sh end
# with the weights and moments of one rank, bit for bit, in f32 and in bf16, also where a run goes on in another cell.
# ctest: timeout 600, ranks 8
set -u
: "${LOCKSTEP:?the command}" "${SOURCE_DIR:?the tree}"
exec bash "$SOURCE_DIR/test/cli/layouts.sh" --hashes '^suite +(gpt|packed|llama|encoder|mlp|cnn|resnet|mixtral)'
