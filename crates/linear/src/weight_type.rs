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
    /// 32 elements of 4 bits, centred on 8, with one f16 scale.
    Q4_0,
    /// 32 elements of 4 bits with one f16 scale and one f16 minimum.
    Q4_1,
    /// 32 elements of 5 bits, centred on 16, with one f16 scale.
    Q5_0,
    /// 32 elements of 5 bits with one f16 scale and one f16 minimum.
    Q5_1,
    /// 32 elements of 8 bits with one f16 scale.
    Q8_0,
    /// 256 elements of 2 bits; sixteen 4-bit scales and minimums over two f16 factors.
    Q2K,
    /// 256 elements of 3 bits, centred on 4; sixteen 6-bit signed scales over one f16 factor.
    Q3K,
    /// 256 elements of 4 bits; eight 6-bit scales and minimums over two f16 factors.
    Q4K,
    /// 256 elements of 5 bits; eight 6-bit scales and minimums over two f16 factors.
    Q5K,
    /// 256 elements of 6 bits; sixteen 8-bit scales over one f16 factor.
    Q6K,
    /// 32 elements of 4 bits that index a table of 16 uneven steps, with one f16 scale.
    Iq4Nl,
    /// 256 elements of 4 bits that index the table of `Iq4Nl`; eight 6-bit signed scales over one f16 factor.
    Iq4Xs,
    /// 32 elements of 4-bit floats (E2M1) with one power of two as their scale: the OCP microscaling format MXFP4.
    Mxfp4,
}

/// What GGML fixes for a type.
struct Facts {
    ggml_id: u32,
    name: &'static str,
    block_elements: usize,
    block_bytes: usize,
}

impl WeightType {
    /// Every type, in ascending order of GGML ids except `Bf16`, which follows `F16`.
    pub const ALL: [Self; 16] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Mxfp4,
    ];

    /// Ids and block sizes as in `ggml.h` and `ggml-common.h` of ggml.
    const fn facts(self) -> Facts {
        let (ggml_id, name, block_elements, block_bytes) = match self {
            Self::F32 => (0, "F32", 1, 4),
            Self::F16 => (1, "F16", 1, 2),
            Self::Bf16 => (30, "BF16", 1, 2),
            Self::Q4_0 => (2, "Q4_0", 32, 2 + 16),
            Self::Q4_1 => (3, "Q4_1", 32, 2 + 2 + 16),
            Self::Q5_0 => (6, "Q5_0", 32, 2 + 4 + 16),
            Self::Q5_1 => (7, "Q5_1", 32, 2 + 2 + 4 + 16),
            Self::Q8_0 => (8, "Q8_0", 32, 2 + 32),
            Self::Q2K => (10, "Q2_K", 256, 16 + 64 + 2 + 2),
            Self::Q3K => (11, "Q3_K", 256, 32 + 64 + 12 + 2),
            Self::Q4K => (12, "Q4_K", 256, 2 + 2 + 12 + 128),
            Self::Q5K => (13, "Q5_K", 256, 2 + 2 + 12 + 32 + 128),
            Self::Q6K => (14, "Q6_K", 256, 128 + 64 + 16 + 2),
            Self::Iq4Nl => (20, "IQ4_NL", 32, 2 + 16),
            Self::Iq4Xs => (23, "IQ4_XS", 256, 2 + 2 + 4 + 128),
            Self::Mxfp4 => (39, "MXFP4", 32, 1 + 16),
        };
        Facts { ggml_id, name, block_elements, block_bytes }
    }

    /// The type with this GGML id.
    ///
    /// # Errors
    /// [`Error::UnsupportedType`] for an id that is none of [`WeightType::ALL`]'s.
    pub const fn from_ggml(ggml_id: u32) -> Result<Self, Error> {
        let mut index = 0;
        while index < Self::ALL.len() {
            if Self::ALL[index].ggml_id() == ggml_id {
                return Ok(Self::ALL[index]);
            }
            index += 1;
        }
        Err(Error::UnsupportedType { ggml_id })
    }

    /// The GGML id of this type.
    pub const fn ggml_id(self) -> u32 {
        self.facts().ggml_id
    }

    /// GGML's name, such as `"BF16"`, `"Q4_K"` or `"IQ4_XS"`.
    pub const fn name(self) -> &'static str {
        self.facts().name
    }

    /// Elements in one quantization block; 1 for the float types.
    pub const fn block_elements(self) -> usize {
        self.facts().block_elements
    }

    /// Stored bytes of one quantization block.
    pub const fn block_bytes(self) -> usize {
        self.facts().block_bytes
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
        // Removed ids, and formats without a packed layout: Q8_1, IQ2_XXS, TQ1_0.
        for ggml_id in [4, 5, 9, 16, 34, 40, u32::MAX] {
            assert_eq!(WeightType::from_ggml(ggml_id), Err(Error::UnsupportedType { ggml_id }));
        }
    }

    #[test]
    fn the_refusal_of_an_id_lists_every_supported_one() {
        let message = Error::UnsupportedType { ggml_id: 9 }.to_string();
        let mut ids: Vec<u32> = WeightType::ALL.iter().map(|ty| ty.ggml_id()).collect();
        ids.sort_unstable();
        let listed: Vec<String> = ids.iter().map(u32::to_string).collect();
        assert!(message.ends_with(&format!("supported ids are {}", listed.join(", "))), "{message}");
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
