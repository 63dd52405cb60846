/* model.h - your own model for the command: `lockstep train --model ./mine.so`, and also eval, predict, plan and bench.
 *
 *   #include <lockstep/model.h>
 *
 *   static lk_tensor mine(lk_tensor x, lk_model_options options)     x: field 0 of the data (batch, dims…)
 *   {
 *       return lk_linear(lk_flatten(x), "fc", options.classes);
 *   }
 *   LK_EXPORT_MODEL(mine)
 *
 *   cc -shared -fPIC mine.c -o mine.so $(pkg-config --cflags lockstep)
 *
 * The command exports all functions of the library, so mine.so need not be linked with it. It may define its own
 * operations (operation.h). All ranks must load the same model: they compare their programs before the first step. */
#ifndef LOCKSTEP_MODEL_H
#define LOCKSTEP_MODEL_H

#include <lockstep/nn.h>
#include <lockstep/operation.h>

/* The version of the headers with which a shared object was compiled; the command rejects versions other than its
 * own. */
#define LK_MODEL_VERSION_TEXT(major, minor) #major "." #minor
#define LK_MODEL_VERSION_OF(major, minor) LK_MODEL_VERSION_TEXT(major, minor)
#define LK_MODEL_VERSION LK_MODEL_VERSION_OF(LK_VERSION_MAJOR, LK_VERSION_MINOR) /* "0.1" */

/* Use once in the shared object, outside functions: exports `model`, an lk_model_function, and the version. */
#define LK_EXPORT_MODEL(model)                                                      \
    LK_BEGIN_DECLS                                                                  \
    extern LK_API const char lockstep_model_version[];                              \
    const char               lockstep_model_version[] = LK_MODEL_VERSION;           \
    LK_API lk_tensor         lockstep_model(lk_tensor x, lk_model_options options); \
    lk_tensor lockstep_model(lk_tensor x, lk_model_options options) { return model(x, options); } \
    LK_END_DECLS

#endif
