//! Which instruction set the kernels use. It never changes a result.

use crate::kernels;

/// An instruction set the kernels are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// Plain Rust, on every machine.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
}

impl Isa {
    /// The best instruction set this CPU has.
    pub fn detect() -> Self {
        Self::available().next().unwrap_or(Self::Scalar)
    }

    /// All instruction sets this CPU has, best first.
    pub fn available() -> impl Iterator<Item = Self> {
        kernels::avx2_available().then_some(Self::Avx2).into_iter().chain([Self::Scalar])
    }

    /// Short name for logs and tests.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
        }
    }
}
