# axis.bash - for scripts that test an axis of the mesh at the command, sourced behind frame.bash: data, and what is
# the same along every axis. text.txt is in the current folder then.
for _ in $(seq 40); do echo "All: speak, speak. First Citizen: you are all resolved rather to die than to famish?"; \
    done > text.txt
data="--data text:text.txt --tokenizer char --batch 6 --threads 1 --seed 3"

far_from() { # far_from REFERENCE OTHER: complains where what they saved differs
    far=$(python3 "$SOURCE_DIR/test/cli/layouts.py" 1e-9 "$1" "$2" 2>&1) || complain "$2: $far"
}

loss_of() { field loss < out.txt; }
eval_alike() { # eval_alike DIRECTORY MESH…: what one rank evaluates, on other meshes
    local one samples mesh directory=$1
    shift
    expect 0 "" "$LOCKSTEP" eval --load "$directory" --json
    one=$(loss_of) samples=$(field samples < out.txt)
    for mesh; do
        expect 0 "" "$LOCKSTEP" eval --load "$directory" --mesh "$mesh" --json
        [ -n "$one" ] && awk -v a="$one" -v b="$(loss_of)" 'BEGIN { exit !((a - b)^2 < 1e-18 * a * a) }' ||
            complain "eval --mesh $mesh: a loss of $(loss_of), not $one"
        [ "$samples" = "$(field samples < out.txt)" ] ||
            complain "eval --mesh $mesh: $(cat out.txt), not $samples samples"
    done
}

generate_alike() { # generate_alike DIRECTORY MESH…
    local mesh directory=$1
    shift
    expect 0 "" "$LOCKSTEP" generate --load "$directory" --prompt "All: " --tokens 6 --temperature 0
    mv out.txt text_of_one.txt
    for mesh; do
        expect 0 "" "$LOCKSTEP" generate --load "$directory" --prompt "All: " --tokens 6 --temperature 0 --mesh "$mesh"
        cmp -s out.txt text_of_one.txt || complain "generate --mesh $mesh: $(cat out.txt), not $(cat text_of_one.txt)"
    done
}

killed_saved() { [ -e killed/state.json ] && [ "$(field step < killed/state.json)" -ge 2 ]; }
rank_runs() { victim_pid=$(rank_pid 1) && [ -n "$victim_pid" ]; }
kill_a_rank() { # kill_a_rank MESH ARGUMENT…: rank 1 of `train ARGUMENT…` is killed; what it saved goes on in MESH
    local from mesh=$1
    shift
    mark_jobs
    # shellcheck disable=SC2154 # mark: mark_jobs sets it
    (exec env "$mark" "$LOCKSTEP" train "$@" --eval-every -1 --steps 100000 --save killed --save-every 1 --timeout 5) \
        > out.txt 2> err.txt < /dev/null &
    job=$!
    wait_until_job 60 rank_runs && wait_until_job 60 killed_saved || complain "it did not start: $(cat err.txt)"
    kill -KILL "$victim_pid"
    await_end 60
    # shellcheck disable=SC2154 # code: await_end sets it
    [ "$code" != 0 ] && grep -Eq "rank 1( |,|.*)(SIGKILL|signal 9|Killed|killed)" err.txt ||
        complain "exit status $code, and no message that rank 1 was killed: $(cat err.txt)"
    expect_no_members 0
    from=$(field step < killed/state.json)
    expect 0 "" "$LOCKSTEP" train --resume auto --save killed --steps $((from + 2)) --mesh "$mesh"
}
