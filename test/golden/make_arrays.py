"""Writes the files in arrays/, as NumPy and safetensors write them; test_data_arrays.c reads them. Element i of an array, in row-major
order, is pattern(i): whole numbers from 0 to 12; floating-point numbers from -1 to 2 in steps of a quarter.

  python3 make_arrays.py        (NumPy and safetensors; run in this folder)
"""
import io, os, zipfile
import numpy as np
from safetensors.numpy import save_file

os.makedirs("arrays", exist_ok=True)


def whole(dtype, *shape):
    return (np.arange(np.prod(shape)) * 7 % 13).astype(dtype).reshape(shape)


def real(dtype, *shape):
    return ((np.arange(np.prod(shape)) * 7 % 13) / 4 - 1).astype(dtype).reshape(shape)


def save(name, array, version=None):
    with open(f"arrays/{name}.npy", "wb") as file:
        np.lib.format.write_array(file, array, version=version, allow_pickle=True)


for code in ("u1", "i1", "u2", "i2", "u4", "i4", "i8"):
    save(code, whole(code, 5, 3))
for code in ("f2", "f4", "f8"):
    save(code, real(code, 5, 3))
save("b1", whole("i4", 5, 3) % 2 == 1)
save("v2", real("f4", 5, 3), (2, 0))
save("v3", real("f4", 5, 3), (3, 0))
save("y", whole("i8", 5))
save("y_f8", whole("f8", 5))
save("y_column", whole("i4", 5, 1))
save("y_fraction", real("f4", 5))
save("y_multi", (whole("i4", 5, 3) % 2).astype("f4"))
save("grey", whole("u1", 5, 4, 6))
save("first", whole("u1", 5, 3, 4, 6))
save("last", whole("u1", 5, 4, 6, 3))
save("both", whole("u1", 5, 3, 4, 3))
save("big", real(">f4", 5, 3))
save("fortran", np.asfortranarray(real("f4", 5, 3)))
save("fortran_column", np.asfortranarray(real("f4", 5, 1)))
save("objects", np.array([{}, None, 3], dtype=object))
save("strings", np.array(["cat", "dog", "cat", "dog", "dog"]))
save("records", np.zeros(5, dtype=[("a", "f4"), ("b", "i4")]))
save("complex", np.zeros(5, dtype="c8"))
save("scalar", np.float32(3))
save("empty", np.zeros((0, 3), "f4"))
nan = real("f4", 5, 3)
nan[3, 1] = np.nan
save("nan", nan)
infinite = real("f8", 5, 3)
infinite[2, 2] = 1e300
save("infinite", infinite)

arrays = {"x": whole("u1", 5, 4, 6, 3), "y": whole("i8", 5), "weight": real("f8", 5)}
np.savez("arrays/stored.npz", **arrays)
np.savez_compressed("arrays/deflated.npz", **arrays)
np.savez_compressed("arrays/keras.npz", x_train=whole("u1", 5, 4, 6), y_train=whole("u1", 5), x_test=whole("u1", 2, 4, 6), y_test=whole("u1", 2))


class Pipe(io.RawIOBase):  # not seekable: zipfile then writes data descriptors
    def __init__(self, file):
        self.file = file

    def writable(self):
        return True

    def write(self, data):
        return self.file.write(data)


with open("arrays/descriptors.npz", "wb") as file, zipfile.ZipFile(Pipe(file), "w", zipfile.ZIP_DEFLATED) as archive:
    for name, array in arrays.items():
        data = io.BytesIO()
        np.save(data, array)
        archive.writestr(zipfile.ZipInfo(f"{name}.npy"), data.getvalue(), zipfile.ZIP_DEFLATED)

save_file({"images": whole("u1", 5, 3, 4, 6), "label": whole("i8", 5), "tokens": whole("i4", 5, 7), "weight": real("f4", 5)},
          "arrays/data.safetensors")
