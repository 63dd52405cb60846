/* cxx_macros.cpp - every macro of the public headers from C++20: options by name and left out, configurations as they
 * are initialised. cxx_warnings.sh compiles it with every compiler at hand and sees to it that no macro is missing
 * here. */
#include <lockstep.h>

#include <cmath>
#include <cstdio>

#define WANT(condition)                                                          \
    do {                                                                         \
        if (!(condition)) {                                                      \
            std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
            return false;                                                        \
        }                                                                        \
    } while (0)

static bool record_everything(lk_graph *graph)
{
    const int64_t image_dims[] = {4, 3, 8, 8}, dims[] = {4, 6}, one[] = {6}, four[] = {4}, channels[] = {3};
    const int64_t weight_dims[] = {5, 3, 3, 3}, table_dims[] = {7, 6}, flat[] = {-1, 7}, ignored = 3;
    const int     axes[] = {0, 1}, all_axes[] = {0, 1, 2, 3};
    lk_tensor     none = {}, image = lk_input(graph, "image", LK_F32, 4, image_dims);
    lk_tensor x = lk_input(graph, "x", LK_F32, 2, dims), constant = lk_input(graph, "c", LK_F32, 1, one, .fixed = true);
    lk_tensor ids = lk_input(graph, "ids", LK_I32, 1, four);
    lk_tensor scale = lk_parameter(graph, "scale", 1, one),
              table = lk_parameter(graph, "table", 2, table_dims, .frozen = true);
    lk_tensor kernel =
        lk_parameter(graph, "kernel", 4, weight_dims, .init = LK_INIT_NORMAL, .a = 0.1, .no_decay = true);
    lk_tensor mean = lk_buffer(graph, "mean", LK_F32, 1, channels, 0),
              var = lk_buffer(graph, "var", LK_F32, 1, channels, 1, .not_saved = true);
    lk_tie(scale, "scale2");
    lk_block_begin(x, "plain");
    lk_block_end(x);
    lk_block_begin(x, "again", .recompute = true);
    lk_tensor y = lk_add(lk_sub(x, constant), lk_mul(x, lk_div(x, lk_scale(x, 2))));
    y = lk_relu(lk_silu(lk_sigmoid(lk_tanh(lk_gelu(lk_gelu(y), .tanh = true)))));
    lk_block_end(x);
    y = lk_softmax(lk_log_softmax(lk_dropout(y, 0.1), -1), 1);
    y = lk_add(y, lk_f_layer_norm(lk_f_rms_norm(y, scale), scale, none, .epsilon = 1e-6));
    y = lk_f_linear(lk_addmm(none, lk_f_linear(y, table, none), table), table, none);
    y = lk_matmul(lk_reshape(lk_transpose(y, 1, 1), 2, flat), table, .transpose_b = false);
    y = lk_slice(lk_concat(&y, 1, 1), 1, 0, 6);
    lk_tensor z = lk_f_conv2d(image, kernel, none, .padding = 1);
    z = lk_avg_pool2d(lk_max_pool2d(lk_permute(z, all_axes), 3, .stride = 2, .padding = 1), 2);
    z = lk_conv2d(z, "conv", 3, 1, .no_bias = true);
    z = lk_batch_norm(z, "bn", .momentum = 0.2);
    z = lk_f_batch_norm(z, none, none, mean, var, none, .momentum = 0.3);
    z = lk_linear(lk_global_avg_pool2d(z), "fc", 6);
    z = lk_rms_norm(lk_layer_norm(lk_add(z, lk_flatten(y)), "ln"), "rms", .epsilon = 1e-6);
    z = lk_add(z, lk_add(lk_f_embedding(ids, table), lk_embedding(ids, "words", 7, 6, .std = 0.5)));
    lk_tensor each = lk_cross_entropy_each(z, ids, .ignore_index = &ignored);
    (void)lk_mse_each(each, each);
    lk_tensor loss = lk_cross_entropy(z, ids, .label_smoothing = 0.1, .ignore_index = &ignored);
    lk_tensor squared = lk_mse(x, y), mean_of_sums = lk_mean(lk_sum(x, .axes = axes, .axes_count = 1, .keepdim = true));
    WANT(loss.graph == graph && squared.id >= 0 && mean_of_sums.id >= 0);
    const int64_t six = 6;
    const uint8_t parts[] = {1, 0, 0, 1, 1, 0};
    lk_tensor     u = lk_exp(lk_log(lk_sqrt(lk_pow(lk_clamp(lk_leaky_relu(x, 0.1), 0, INFINITY), 2.5))));
    u = lk_where(lk_constant(graph, LK_U8, 1, &six, parts), u, lk_stop_gradient(lk_cast(lk_cast(x, LK_BF16), LK_F32)));
    u = lk_place(u, "tensor", LK_REPLICATED);
    u = lk_add(u, lk_max(u, 1, .keepdim = true));
    u = lk_group_norm(lk_f_group_norm(u, 2, none, none), "group", 3, .epsilon = 1e-3);
    lk_tensor index = lk_argmax(u, -1), binary = lk_bce_with_logits(u, x, .weight = x);
    binary = lk_add(lk_add(binary, lk_bce_with_logits(u, x)), lk_l1(u, x));
    const int64_t   sequence[] = {4, 2, 6}, angles[] = {2, 6};
    const lk_tensor both[] = {x, u};
    lk_tensor       s = lk_reshape(lk_concat(both, 2, 1), 3, sequence);
    s = lk_rope(s, lk_parameter(graph, "angles", 2, angles, .frozen = true), 1, none);
    s = lk_attention(lk_swiglu(s, s), s, s, .heads = 2, .causal = true);
    const int64_t cached[] = {4, 9, 6}, rows[] = {4, 2};
    lk_tensor     cache = lk_buffer(graph, "cache", LK_F32, 3, cached, 0, .not_saved = true);
    WANT(lk_tensor_dim(lk_cache_write(cache, s, lk_input(graph, "rows", LK_I32, 2, rows)), 1) == 9);
    WANT(lk_attention(s, none, none).id >= 0 && lk_linear_cross_entropy(x, table, ids).id >= 0);
    WANT(lk_linear_cross_entropy(x, table, ids, .label_smoothing = 0.1).id >= 0);
    lk_metric(lk_equal(index, ids), "hits");
    lk_metric(u, "mean", .weight = x);
    WANT(lk_loss(u).id >= 0 && lk_loss(u, .weight = x).id >= 0);
    WANT(lk_tensor_dtype(index) == LK_I32 && lk_tensor_rank(index) == 1 && lk_tensor_rank(binary) == 0);
    const int64_t expert_dims[] = {6, 5, 6};
    lk_groups     groups = lk_group_rows(lk_topk(lk_softmax(u, -1), 2).index, 6, 0);
    lk_tensor     grouped = lk_grouped_linear(lk_gather_rows(u, groups, none),
                                              lk_parameter(graph, "experts.*.weight", 3, expert_dims), groups);
    WANT(lk_tensor_dim(lk_combine_rows(grouped, groups, none), 1) == 5);
    WANT(lk_moe(u, "moe", .experts = 6, .hidden = 8).y.id >= 0 && lk_moe_balance(u).id >= 0);
    lk_moe_metrics(u);
    lk_tensor mixed = lk_mixup_loss(z, ids, ids, lk_input(graph, "mix", LK_F32, 1, four), .label_smoothing = 0.1);
    WANT(lk_tensor_rank(mixed) == 0 && mixed.id >= 0);
    WANT(lk_model_mlp(x, lk_model_options{.hidden = 4}).graph == graph);
    lk_transformer_config gpt = LK_TRANSFORMER_CONFIG_INIT;
    gpt.vocabulary = gpt.context = 7;
    gpt.layers = gpt.heads = 1;
    gpt.width = 4;
    const int64_t token_dims[] = {4, 3};
    lk_tensor     tokens = lk_input(graph, "tokens", LK_I32, 2, token_dims);
    lk_block_begin(tokens, "other");
    WANT(lk_transformer(tokens, &gpt, .positions = tokens).hidden.id >= 0);
    lk_block_end(tokens);
    WANT(lk_transformer(tokens, &gpt).head.id >= 0);
    lk_operation copy = LK_OPERATION_INIT;
    copy.name = "copy";
    copy.inputs = copy.outputs = 1;
    copy.shape = [](const lk_operation_call *call) { return call->outputs[0] = call->inputs[0], LK_OK; };
    copy.forward = [](const lk_operation_call *) { return LK_OK; };
    WANT(lk_tensor_rank(lk_apply(&copy, &x, 1, nullptr)) == 2);
    if (lk_graph_status(graph) < 0) std::fprintf(stderr, "%s\n", lk_graph_error(graph));
    return lk_graph_status(graph) == LK_OK;
}

/* A model for `lockstep train --model`. */
static lk_tensor own_model(lk_tensor x, lk_model_options options)
{
    return lk_linear(lk_flatten(x), "fc", options.classes);
}
LK_EXPORT_MODEL(own_model)

static bool configure_everything(lk_context *context)
{
    lk_context_config           c = LK_CONTEXT_CONFIG_INIT;
    lk_comm_config              comm = LK_COMM_CONFIG_INIT;
    lk_optimizer_config         optimizer = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config              plan = LK_PLAN_CONFIG_INIT;
    lk_dataset_arrays_config    arrays = LK_DATASET_ARRAYS_CONFIG_INIT;
    lk_dataset_callbacks_config callbacks = LK_DATASET_CALLBACKS_CONFIG_INIT;
    lk_dataset_synthetic_config synthetic = LK_DATASET_SYNTHETIC_CONFIG_INIT;
    lk_transform                transform = LK_TRANSFORM_INIT;
    lk_loader_config            loader = LK_LOADER_CONFIG_INIT;
    lk_open_options             open = LK_OPEN_OPTIONS_INIT;
    lk_data_tokenize_config     tokenize = LK_DATA_TOKENIZE_CONFIG_INIT;
    lk_field                    field = {.name = "label", .dtype = LK_I32, .classes = 3};
    lk_sampler_config           sampler = LK_SAMPLER_CONFIG_INIT;
    lk_trainer_config           trainer = LK_TRAINER_CONFIG_INIT;
    lk_launch_config            launch = LK_LAUNCH_CONFIG_INIT;
    lk_parameter_group          group = LK_PARAMETER_GROUP_INIT;
    group.match = "*.bias";
    lk_schedule schedule = {.kind = LK_SCHEDULE_COSINE, .warmup = 5};
    lk_step     step = {.step = 1, .count = 4}, first = LK_STEP_INIT;
    lk_rates    rates = {.flops = 1e9, .memory = 1e9};
    plan.parallel = {.world = 2, .rank = 1};
    optimizer.groups = &group;
    trainer.schedule = schedule;
    loader.transform = transform;
    WANT(c.size == sizeof c && comm.size == sizeof comm && arrays.size == sizeof arrays &&
         callbacks.size == sizeof callbacks);
    WANT(synthetic.size == sizeof synthetic && sampler.size == sizeof sampler && launch.size == sizeof launch);
    WANT(first.step == 1 && first.rate == LK_RATE_OF_OPTIMIZER && first.count == 0);
    WANT(step.rate == 0 && !step.sample_ids && rates.link == 0 && plan.parallel.leaves == 0 && group.lr_scale == 1);
    WANT(optimizer.size == sizeof optimizer && optimizer.groups == &group && trainer.schedule.warmup == 5);
    arrays.fields = &field;
    WANT(tokenize.size == sizeof tokenize && !tokenize.out && !open.tokenizer && open.context == 0);
    WANT(open.size == sizeof open && field.rank == 0 && !field.class_names && arrays.fields->classes == 3);
    WANT(loader.size == sizeof loader && loader.transform.size == sizeof transform && trainer.size == sizeof trainer);
    lk_transformer_config model = LK_TRANSFORMER_CONFIG_INIT;
    WANT(lk_transformer_preset("gpt2", &model) && lk_hf_config_write(&model, nullptr, 0) > 0);
    WANT(lk_hf_config_write(&model, nullptr, 0, .dtype = LK_F64) == lk_hf_config_write(&model, nullptr, 0));
    lk_generator_config made_of = LK_GENERATOR_CONFIG_INIT;
    lk_generate_config  ask = LK_GENERATE_CONFIG_INIT;
    lk_generator       *generator = nullptr;
    const int32_t       token = 3;
    const lk_prompt     prompt = {&token, 1};
    int                 tokens = 0;
    model.vocabulary = model.context = 8, model.layers = model.heads = 1, model.width = 4, model.eos = -1;
    made_of.model = &model;
    ask.prompts = &prompt, ask.prompts_count = 1, ask.tokens = 5, ask.user = &tokens;
    ask.token = [](void *user, const lk_generated *) { return ++*static_cast<int *>(user), LK_OK; };
    WANT(lk_generator_create(context, &made_of, &generator) == LK_OK && lk_generate(generator, &ask, nullptr) == LK_OK);
    WANT(tokens == 5);
    lk_generator_free(generator);
    return lk_context_error(context)[0] == 0;
}

/* A group of one rank: every collective returns its input. */
static bool call_everything(lk_context *context)
{
    lk_comm_config     config = LK_COMM_CONFIG_INIT;
    lk_comm           *comm = nullptr, *part = nullptr;
    lk_work           *work = nullptr;
    void              *memory = nullptr;
    const float        sent[] = {1, 2};
    float              got[2];
    const size_t       counts[] = {2}, displacements[] = {0};
    lk_collective      collective = LK_COLLECTIVE_INIT;
    lk_collective_time time = LK_COLLECTIVE_TIME_INIT;
    lk_transport       transport = LK_TRANSPORT_INIT;
    lk_device          device = LK_DEVICE_INIT;
    WANT(time.size == sizeof time && lk_collective_at(0, &collective) == LK_OK &&
         lk_transport_at(0, &transport) == LK_OK);
    WANT(lk_device_at(0, &device) == LK_OK);
    config.rank = 0;
    config.world = 1;
    WANT(lk_comm_create(context, &config, &comm) == LK_OK);
    WANT(lk_comm_split(comm, 0, 0, &part) == LK_OK && lk_comm_alloc(comm, 64, &memory) == LK_OK);
    lk_mesh_config grid = LK_MESH_CONFIG_INIT;
    lk_mesh       *mesh = nullptr;
    lk_comm       *along = nullptr;
    const unsigned axes[] = {LK_AXIS_DATA | LK_AXIS_TENSOR};
    grid.comm = comm;
    WANT(lk_mesh_create(context, &grid, &mesh) == LK_OK && lk_mesh_create_groups(mesh, axes, 1) == LK_OK);
    WANT(lk_mesh_group(mesh, axes[0], &along) == LK_OK && along == comm);
    lk_mesh_free(mesh);
    WANT(lk_comm_all_reduce(comm, sent, got, 2, LK_F32, LK_SUM, NULL) == LK_OK && got[1] == 2);
    WANT(lk_comm_reduce(comm, sent, got, 2, LK_F32, LK_SUM, 0, NULL) == LK_OK);
    WANT(lk_comm_broadcast(comm, got, 2, LK_F32, 0, NULL) == LK_OK && lk_comm_barrier(comm, NULL) == LK_OK);
    WANT(lk_comm_check_memory(comm, 64) == LK_OK);
    WANT(lk_comm_run(comm, "all_reduce", sent, got, 2, LK_F32, LK_SUM, 0, NULL) == LK_OK);
    WANT(lk_comm_all_gather(comm, sent, got, 2, LK_F32, NULL) == LK_OK);
    WANT(lk_comm_reduce_scatter(comm, sent, got, 2, LK_F32, LK_SUM, NULL) == LK_OK);
    WANT(lk_comm_gather(comm, sent, got, 2, LK_F32, 0, NULL) == LK_OK);
    WANT(lk_comm_scatter(comm, sent, got, 2, LK_F32, 0, NULL) == LK_OK);
    WANT(lk_comm_all_to_all(comm, sent, got, 2, LK_F32, NULL) == LK_OK);
    WANT(lk_comm_all_gatherv(comm, sent, got, counts, displacements, LK_F32, NULL) == LK_OK);
    WANT(lk_comm_gatherv(comm, sent, got, counts, displacements, LK_F32, 0, NULL) == LK_OK);
    WANT(lk_comm_all_to_allv(comm, sent, counts, displacements, got, counts, displacements, LK_F32, NULL) == LK_OK);
    WANT(lk_comm_send(comm, sent, 2, LK_F32, 0, 1, &work) == LK_EINVAL); /* to itself */
    WANT(lk_comm_recv(comm, got, 2, LK_F32, 0, 1, NULL) == LK_EINVAL && !work);
    lk_comm_free(part);
    lk_comm_free(comm);
    return true;
}

int main()
{
    lk_context *context = nullptr;
    lk_graph   *graph = nullptr;
    if (lk_context_create(nullptr, &context) < 0 || lk_graph_create(context, LK_F32, &graph) < 0) return 1;
    bool good = configure_everything(context) && record_everything(graph) && call_everything(context);
    if (!good) std::fprintf(stderr, "%s\n", lk_context_error(context));
    lk_graph_free(graph);
    lk_context_free(context);
    return good ? 0 : 1;
}
