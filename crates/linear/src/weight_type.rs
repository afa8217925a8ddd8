//! The stored types of a weight and the size of their blocks.

use crate::Error;

/// How a weight is stored. Block formats are GGML's, byte for byte.
///
/// `F32` weights multiply in f32; all others multiply in bf16 (see the crate's documentation).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WeightType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// 32 elements of 4 bits with one f16 scale and one f16 minimum.
    Q4_1,
    /// 32 elements of 8 bits with one f16 scale.
    Q8_0,
    /// 256 elements of 4 bits; eight 6-bit scales and minimums over two f16 factors.
    Q4K,
    /// 256 elements of 6 bits; sixteen 8-bit scales over one f16 factor.
    Q6K,
}

impl WeightType {
    /// Every type, in ascending order of GGML ids except `Bf16`, which follows `F16`.
    pub const ALL: [Self; 7] = [Self::F32, Self::F16, Self::Bf16, Self::Q4_1, Self::Q8_0, Self::Q4K, Self::Q6K];

    /// The type with this GGML id.
    ///
    /// # Errors
    /// [`Error::UnsupportedType`] for any id but 0, 1, 3, 8, 12, 14 and 30.
    pub const fn from_ggml(ggml_id: u32) -> Result<Self, Error> {
        match ggml_id {
            0 => Ok(Self::F32),
            1 => Ok(Self::F16),
            3 => Ok(Self::Q4_1),
            8 => Ok(Self::Q8_0),
            12 => Ok(Self::Q4K),
            14 => Ok(Self::Q6K),
            30 => Ok(Self::Bf16),
            _ => Err(Error::UnsupportedType { ggml_id }),
        }
    }

    /// The GGML id of this type.
    pub const fn ggml_id(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_1 => 3,
            Self::Q8_0 => 8,
            Self::Q4K => 12,
            Self::Q6K => 14,
            Self::Bf16 => 30,
        }
    }

    /// GGML's name: `"F32"`, `"F16"`, `"BF16"`, `"Q4_1"`, `"Q8_0"`, `"Q4_K"` or `"Q6_K"`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q4_1 => "Q4_1",
            Self::Q8_0 => "Q8_0",
            Self::Q4K => "Q4_K",
            Self::Q6K => "Q6_K",
        }
    }

    /// Elements in one quantization block; 1 for the float types.
    pub const fn block_elements(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_1 | Self::Q8_0 => 32,
            Self::Q4K | Self::Q6K => 256,
        }
    }

    /// Stored bytes of one quantization block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_1 => 20,
            Self::Q8_0 => 34,
            Self::Q4K => 144,
            Self::Q6K => 210,
        }
    }

    /// Stored bytes of one row of `in_features` elements.
    ///
    /// # Errors
    /// [`Error::PartialBlock`] if the row is not whole blocks; [`Error::TooLarge`] if the bytes overflow.
    pub fn row_bytes(self, in_features: usize) -> Result<usize, Error> {
        let block_elements = self.block_elements();
        if !in_features.is_multiple_of(block_elements) {
            return Err(Error::PartialBlock { type_name: self.name(), in_features, block_elements });
        }
        (in_features / block_elements).checked_mul(self.block_bytes()).ok_or(Error::TooLarge {
            type_name: self.name(),
            out_features: 1,
            in_features,
        })
    }

    /// Whether products with this type round both operands to bf16.
    pub const fn multiplies_in_bf16(self) -> bool {
        !matches!(self, Self::F32)
    }
}

impl std::fmt::Display for WeightType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl TryFrom<u32> for WeightType {
    type Error = Error;

    fn try_from(ggml_id: u32) -> Result<Self, Error> {
        Self::from_ggml(ggml_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ggml_ids_lead_back_to_their_type() {
        for ty in WeightType::ALL {
            assert_eq!(WeightType::from_ggml(ty.ggml_id()), Ok(ty));
        }
        assert_eq!(WeightType::from_ggml(2), Err(Error::UnsupportedType { ggml_id: 2 }));
    }

    #[test]
    fn a_row_that_ends_inside_a_block_is_refused_with_its_numbers() {
        assert_eq!(
            WeightType::Q4K.row_bytes(300),
            Err(Error::PartialBlock { type_name: "Q4_K", in_features: 300, block_elements: 256 })
        );
        assert_eq!(WeightType::Q4K.row_bytes(512), Ok(288));
    }
}
