#!/usr/bin/env bash
# cli_model_layouts.sh - models of the user's whose layers are not alike, in layouts: batch norm in one stage alone, one
# norm in each stage, parameters that several leaves gather. Checkpoints, and the results of one rank or of replicated
# state.
# ctest: timeout 240, ranks 4
set -eu
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"
build() { "$CC" -std=gnu11 -O2 -Wall -Wextra -Werror -shared -fPIC -I "$SOURCE_DIR/include" -x c - -o "$1"; }
data="--data synthetic:3x8x8,count=256 --threads 1 --eval-every -1"
train() { # train MODEL WORDS…
    # shellcheck disable=SC2086
    "$LOCKSTEP" train --model "./$1.so" $data --json "${@:2}" 2> err.txt ||
        fail "train $*: exit status $?: $(cat err.txt)"
}

# ---- one norm in each stage: the next micro-batch's forward must not read what another rank writes ----
build norms.so << 'C'
#include <lockstep/model.h>
static lk_tensor norms(lk_tensor x, lk_model_options o)
{
    for (int i = 0; i < 2; i++) {
        lk_block_begin(x, i ? "layers.1" : "layers.0");
        x = lk_relu(lk_batch_norm(lk_conv2d(x, "conv", 16, 3, .padding = 1, .no_bias = true), "norm"));
        lk_block_end(x);
    }
    return lk_linear(lk_global_avg_pool2d(x), "head", o.classes);
}
LK_EXPORT_MODEL(norms)
C
staged="--batch 32 --steps 6 --mesh pipeline=2,data=2 --micro-batches 4 --sync-batchnorm"
# shellcheck disable=SC2086
hash=$(train norms $staged --state replicated | field hash)
for _ in $(seq 4); do
    # shellcheck disable=SC2086
    other=$(train norms $staged | field hash)
    [ -n "$hash" ] && [ "$hash" = "$other" ] || fail "shared state in stages: $other, not $hash"
done

# ---- norms in the first stage alone: all ranks agree on whose running statistics are saved ----
build features.so << 'C'
#include <lockstep/model.h>
static lk_tensor features(lk_tensor x, lk_model_options o)
{
    lk_block_begin(x, "layers.0");
    x = lk_max_pool2d(lk_relu(lk_batch_norm(lk_conv2d(x, "conv", 16, 3, .padding = 1, .no_bias = true), "norm")), 2);
    lk_block_end(x);
    lk_block_begin(x, "layers.1");
    x = lk_relu(lk_linear(lk_flatten(x), "fc", 64));
    lk_block_end(x);
    return lk_linear(x, "head", o.classes);
}
LK_EXPORT_MODEL(features)
C
for mesh in pipeline=2,data=2 data=2,pipeline=2 pipeline=2,shard=2; do
    rm -rf whole half
    run="--batch 32 --mesh $mesh --micro-batches 2"
    # shellcheck disable=SC2086
    {
        hash=$(train features $run --steps 4 --save whole | field hash)
        train features $run --steps 2 --save half > half.json
        other=$(train features $run --steps 4 --save half --resume auto | field hash)
    }
    [ -n "$hash" ] && [ "$hash" = "$other" ] || fail "$mesh: resumed to $other, not $hash"
done

# ---- leaves that advance together gather the parameters once, however many a rank has ----
build tied.so << 'C'
#include <lockstep/model.h>
static lk_tensor tied(lk_tensor x, lk_model_options o)
{
    lk_block_begin(x, "layers.0");
    x = lk_relu(lk_batch_norm(lk_conv2d(x, "conv", 16, 3, .padding = 1, .no_bias = true), "norm"));
    x = lk_global_avg_pool2d(x);
    lk_block_end(x);
    lk_block_begin(x, "layers.1");
    lk_tensor w = lk_parameter(x.graph, "w", 2, ((int64_t[]){16, 16}), .init = LK_INIT_NORMAL, .a = 0.2), none = {0};
    x = lk_f_linear(lk_relu(lk_f_linear(x, w, none)), w, none);
    lk_block_end(x);
    return lk_linear(x, "head", o.classes);
}
LK_EXPORT_MODEL(tied)
C
run="--batch 24 --steps 3 --sync-batchnorm --reproducible"
# shellcheck disable=SC2086
{
    hash=$(train tied $run | field hash)
    for backend in shm tcp; do
        other=$(train tied $run --state replicated --mesh shard=3 --backend $backend | field hash)
        [ -n "$hash" ] && [ "$hash" = "$other" ] || fail "shard=3 over $backend: $other, not $hash"
    done
}
