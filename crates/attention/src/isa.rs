//! Which instruction set the kernels use. It never changes a result.

use crate::{Error, kernels};

/// An instruction set the kernels are written for. All of them give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// Plain Rust, on every machine.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW and VL.
    Avx512,
    /// x86-64 with AMX tiles, permitted by the system, for bf16 keys and values, and AVX-512 with bf16 for the rest.
    Amx,
    /// AArch64 with NEON, which every such CPU has.
    Neon,
}

impl Isa {
    /// Every instruction set, fastest first.
    pub const ALL: [Self; 5] = [Self::Amx, Self::Avx512, Self::Avx2, Self::Neon, Self::Scalar];

    /// The fastest instruction set of this CPU. The first call on a CPU with AMX asks the system for permission to use it.
    pub fn detect() -> Self {
        Self::available().next().unwrap_or(Self::Scalar)
    }

    /// Every instruction set of this CPU, fastest first.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// Whether this CPU has the instruction set, and the system lets it be used.
    pub fn is_available(self) -> bool {
        kernels::is_available(self)
    }

    /// `self`, if this CPU has it.
    ///
    /// # Errors
    /// [`Error::IsaUnavailable`] otherwise.
    pub fn require(self) -> Result<Self, Error> {
        if self.is_available() { Ok(self) } else { Err(Error::IsaUnavailable { isa: self, best: Self::detect() }) }
    }

    /// Short name for logs and settings: `"scalar"`, `"avx2"`, `"avx512"`, `"amx"` or `"neon"`. [`str::parse`] reads it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Amx => "amx",
            Self::Neon => "neon",
        }
    }
}

impl std::fmt::Display for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Isa {
    type Err = Error;

    /// Reads [`Isa::name`], whether this CPU has the instruction set or not.
    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|isa| isa.name() == name).ok_or(Error::UnknownIsa)
    }
}
