/* base/dtype_list.h - the table of element types as a list of macros: everything in which types differ, except for
 * kernels. base/dtype.h turns it into an array; code that needs loops without calls (reductions, casts, arrays of
 * files) expands the list itself. CMakeLists.txt reads the names of those with kernels here. */
#ifndef LK__DTYPE_LIST_H
#define LK__DTYPE_LIST_H

#include <lockstep/base.h>

/* X(id, name, bytes, kind, sums, memory, number, load, store, safetensors, order, numpy, text); its constant is LK_id.
 *
 * kind    COMPUTED: kernels store it and compute in it. STORED: kernels store it, and compute in the type of its sums.
 *         EXCHANGED: in files and collectives alone. INTEGER.
 * sums    the type in which its elements are added, to be rounded once
 * memory  the C type of an element in memory; load and store convert it to and from `number`, the C type of the sums
 * order   tensors of a safetensors file are sorted by it
 * numpy   its code in .npy files, without the byte order; NULL: NumPy does not have it
 * text    what NumPy and PyTorch call it */
#define LK__DTYPE_LIST(X)                                                                                             \
    X(F32, f32, 4, COMPUTED, F32, float, float, LK__AS_IS, LK__AS_IS, "F32", 2, "f4", "float32")                      \
    X(F64, f64, 8, COMPUTED, F64, double, double, LK__AS_IS, LK__AS_IS, "F64", 1, "f8", "float64")                    \
    X(BF16, bf16, 2, STORED, F32, uint16_t, float, lk__load_bf16, lk__store_bf16, "BF16", 4, NULL, "bfloat16")        \
    X(F16, f16, 2, EXCHANGED, F32, lk__f16_memory, float, lk__load_f16, lk__store_f16, "F16", 5, "f2", "float16")     \
    X(I8, i8, 1, INTEGER, I8, int8_t, int8_t, LK__AS_IS, LK__AS_IS, "I8", 6, "i1", "int8")                            \
    X(U8, u8, 1, INTEGER, U8, uint8_t, uint8_t, LK__AS_IS, LK__AS_IS, "U8", 7, "u1", "uint8")                         \
    X(I32, i32, 4, INTEGER, I32, int32_t, int32_t, LK__AS_IS, LK__AS_IS, "I32", 3, "i4", "int32")                     \
    X(I64, i64, 8, INTEGER, I64, int64_t, int64_t, LK__AS_IS, LK__AS_IS, "I64", 0, "i8", "int64")

#define LK__AS_IS(x) (x)

#endif
