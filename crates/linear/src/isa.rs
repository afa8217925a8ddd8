//! Instruction sets and the settings of a call.

use crate::kernels;

/// An instruction set a kernel is written for. All of them give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// Plain Rust; the definition of the result.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
}

impl Isa {
    /// The fastest instruction set of this CPU.
    pub fn detect() -> Self {
        if kernels::avx2_available() { Self::Avx2 } else { Self::Scalar }
    }

    /// Every instruction set of this CPU, fastest first.
    pub fn available() -> &'static [Self] {
        if kernels::avx2_available() { &[Self::Avx2, Self::Scalar] } else { &[Self::Scalar] }
    }

    /// Short name for logs: `"scalar"` or `"avx2"`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
        }
    }
}

/// How a call runs. Settings change speed and scratch size, never a bit of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Instruction set. One that this CPU lacks falls back to [`Isa::Scalar`].
    pub isa: Isa,
    /// Tasks that share the work, on the caller's current rayon pool. 0 counts as 1; 1 runs inline.
    pub threads: usize,
}

impl Default for Settings {
    /// The fastest instruction set, and as many threads as the current rayon pool has.
    fn default() -> Self {
        Self { isa: Isa::detect(), threads: rayon::current_num_threads() }
    }
}
