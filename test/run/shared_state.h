/* shared_state.h - shared by tests of ranks that hold their state together: a small job, its bits compared with those
 * of replicated training, and a loop by hand. */
#ifndef SHARED_STATE_H
#define SHARED_STATE_H

#include "parallel.h"

#include <unistd.h>

enum { STEPS = SANITIZED ? 3 : 6 };

SHARED job small_job(int world)
{
    return (job){
        .model = "cnn", .real = LK_F32, .side = 16, .steps = STEPS, .batch = 24, .world = world, .optimizer = LK_ADAM};
}

/* The same job, replicated on one host, and shared. */
SHARED void compare(job j, const char *what)
{
    report *replicated = new_report(), *shared = new_report();
    int     each = j.each;
    j.state = LK_STATE_REPLICATED;
    j.each = 0;
    j.out = replicated;
    run_job(&j);
    j.state = LK_STATE_SHARED;
    j.each = each;
    j.out = shared;
    run_job(&j);
    for (int i = 0; i < j.steps; i++)
        CHECK(shared->losses[i] == replicated->losses[i] && shared->losses[i] != 0,
              "%d ranks, %s: loss %d is %.17g, replicated %.17g", j.world, what, i, shared->losses[i],
              replicated->losses[i]);
    for (int i = 0; i < j.world; i++)
        CHECK(shared->hashes[i] == replicated->hashes[0] && shared->hashes[i] != 0,
              "%d ranks, %s: rank %d's state differs from the replicated one", j.world, what, i);
    free_report(replicated);
    free_report(shared);
}

SHARED void run_sections(rank_program *p, const job *j, int rank, int step)
{
    int64_t first = first_row(j, j->batch, rank), count = first_row(j, j->batch, rank + 1) - first;
    lk_step s = {.step = step, .count = count, .total = j->batch, .rate = 1e-3};
    fill_rows(p->images, j->real, p->labels, j->side, first, count, step);
    REQUIRE(lk_program_step(p->rig.program, &s) == LK_OK && lk_program_run(p->rig.program, LK_FORWARD) == LK_OK &&
                lk_program_run(p->rig.program, LK_BACKWARD) == LK_OK &&
                lk_program_run(p->rig.program, LK_SYNC) == LK_OK,
            "%s", lk_context_error(p->rig.context));
}

/* Gradients are read by one rank alone, then changed and written by all; a step is dropped; state is read between
 * LK_SYNC and LK_UPDATE. */
SHARED int loop_by_hand(int rank, void *user)
{
    const job *j = user;
    check_failures = 0;
    rank_program p = enrol_rank(j, rank);
    lk_program  *program = p.rig.program;
    for (int step = 1; step <= 3; step++) {
        lk_state s;
        uint64_t hash = lk_store_hash(p.rig.store);
        run_sections(&p, j, rank, step);
        if (rank == 0 && step == 1) keep_gradient(&p, j, j->batch, j->out);
        if (rank == 1) usleep(20000); /* meanwhile nobody may update what this rank reads */
        CHECK(lk_store_hash(p.rig.store) == hash, "step %d: the state changed before this rank's LK_UPDATE", step);
        if (step == 2) run_sections(&p, j, rank, step + 10); /* instead of the gradients before */
        if (step == 3) {
            REQUIRE(lk_store_find(p.rig.store, "fc1.weight", &s));
            void *gradient = gradient_copy(program, p.rig.store, s.name);
            for (int64_t i = 0; i < state_elements(&s); i++)
                set_real(gradient, j->real, i, real_at(gradient, j->real, i) * (double)(i % 7));
            REQUIRE(lk_program_gradient_write(program, s.name, gradient, state_bytes(&s)) == LK_OK, "%s",
                    lk_context_error(p.rig.context));
            REQUIRE(lk_program_gradient_scale(program, NULL, 0.5) == LK_OK);
            void *again = gradient_copy(program, p.rig.store, s.name);
            CHECK(real_at(again, j->real, 8) == 0.5 * real_at(gradient, j->real, 8));
        }
        REQUIRE(lk_program_run(program, LK_UPDATE) == LK_OK, "%s", lk_context_error(p.rig.context));
    }
    /* Gradients without a backward. */
    lk_state s;
    REQUIRE(lk_store_find(p.rig.store, "fc2.bias", &s));
    double  written[16] = {0};
    lk_step step = {.step = 4, .rate = 1e-3};
    for (int i = 0; i < 10; i++) set_real(written, j->real, i, 0.25 * i);
    REQUIRE(lk_program_step(program, &step) == LK_OK &&
                lk_program_gradient_write(program, s.name, written, state_bytes(&s)) == LK_OK &&
                lk_program_run(program, LK_UPDATE) == LK_OK,
            "%s", lk_context_error(p.rig.context));
    j->out->hashes[rank] = lk_store_hash(p.rig.store);
    if (j->state == LK_STATE_SHARED) {
        double none[16];
        CHECK(lk_program_gradient_read(program, s.name, none, state_bytes(&s)) == LK_EINVAL);
        CHECK(strstr(lk_context_error(p.rig.context), "read them after LK_SYNC"), "%s",
              lk_context_error(p.rig.context));
        CHECK(!lk_program_gradient(program, s.name));
    }
    dismiss_rank(&p);
    return check_result();
}

#endif
