//! AMX for tests: executes the instructions on tiles that AMX kernels use where the processor has AVX-512 but no tiles.
//!
//! Preloaded into a process (`LD_PRELOAD`), it takes the signal by which the system reports an instruction that the processor does not know,
//! decodes it, executes it on tiles of its own, one set for each thread, and lets the program go on behind it. Any other instruction, and
//! those on tiles that are not listed in `decode::Instruction`, end the process as they would without it. `cargo xtask amx` is its user.
//!
//! Made to find wrong results and not to be fast: the way into the signal handler and back takes longer than a product of two tiles.
//! A processor reports tiles of a wrong shape by a signal; here one line on standard error says what is wrong, and the process is aborted.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![expect(unsafe_code, reason = "a signal handler that reads instructions, and what they read and write")]

mod decode;
mod handler;
mod product;
mod tiles;
