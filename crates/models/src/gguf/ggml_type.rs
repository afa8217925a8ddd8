//! The tensor types of ggml: id, name and block size of each.

use std::fmt;

/// Builds the enum and its lookups from one table, so that they cannot disagree.
macro_rules! ggml_types {
    ($($variant:ident = $id:literal, $name:literal, $elements:literal, $bytes:expr;)*) => {
        /// Element type of a tensor in a GGUF file. All current types are known, so that sizes can be checked, whether
        /// a kernel can run them or not.
        ///
        /// Ids and block sizes as in `ggml.h` and `ggml-common.h` of ggml.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum GgmlType {
            $(#[doc = concat!("`", $name, "`: ", stringify!($elements), " elements per quant block.")] $variant,)*
        }

        impl GgmlType {
            /// All types, by ascending id.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The type of a ggml id; `None` for ids that ggml never had, has removed, or added later.
            pub const fn from_id(id: u32) -> Option<Self> {
                match id { $($id => Some(Self::$variant),)* _ => None }
            }

            /// The id that files store.
            pub const fn id(self) -> u32 {
                match self { $(Self::$variant => $id,)* }
            }

            /// The name as model files are labelled, such as `Q4_K`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Elements per quant block; 1 for plain types.
            pub const fn block_elements(self) -> usize {
                match self { $(Self::$variant => $elements,)* }
            }

            /// Bytes per quant block.
            pub const fn block_bytes(self) -> usize {
                match self { $(Self::$variant => $bytes,)* }
            }
        }
    };
}

// In the K and IQ types a block of 256 elements holds 2-byte scales, packed sub-scales and packed quants.
ggml_types! {
    F32 = 0, "F32", 1, 4;
    F16 = 1, "F16", 1, 2;
    Q4_0 = 2, "Q4_0", 32, 2 + 16;
    Q4_1 = 3, "Q4_1", 32, 2 + 2 + 16;
    Q5_0 = 6, "Q5_0", 32, 2 + 4 + 16;
    Q5_1 = 7, "Q5_1", 32, 2 + 2 + 4 + 16;
    Q8_0 = 8, "Q8_0", 32, 2 + 32;
    Q8_1 = 9, "Q8_1", 32, 2 + 2 + 32;
    Q2K = 10, "Q2_K", 256, 16 + 64 + 2 + 2;
    Q3K = 11, "Q3_K", 256, 32 + 64 + 12 + 2;
    Q4K = 12, "Q4_K", 256, 2 + 2 + 12 + 128;
    Q5K = 13, "Q5_K", 256, 2 + 2 + 12 + 32 + 128;
    Q6K = 14, "Q6_K", 256, 128 + 64 + 16 + 2;
    Q8K = 15, "Q8_K", 256, 4 + 256 + 32;
    Iq2Xxs = 16, "IQ2_XXS", 256, 2 + 64;
    Iq2Xs = 17, "IQ2_XS", 256, 2 + 64 + 8;
    Iq3Xxs = 18, "IQ3_XXS", 256, 2 + 96;
    Iq1S = 19, "IQ1_S", 256, 2 + 32 + 16;
    Iq4Nl = 20, "IQ4_NL", 32, 2 + 16;
    Iq3S = 21, "IQ3_S", 256, 2 + 64 + 8 + 32 + 4;
    Iq2S = 22, "IQ2_S", 256, 2 + 64 + 8 + 8;
    Iq4Xs = 23, "IQ4_XS", 256, 2 + 2 + 4 + 128;
    I8 = 24, "I8", 1, 1;
    I16 = 25, "I16", 1, 2;
    I32 = 26, "I32", 1, 4;
    I64 = 27, "I64", 1, 8;
    F64 = 28, "F64", 1, 8;
    Iq1M = 29, "IQ1_M", 256, 32 + 16 + 8;
    Bf16 = 30, "BF16", 1, 2;
    Tq1_0 = 34, "TQ1_0", 256, 48 + 4 + 2;
    Tq2_0 = 35, "TQ2_0", 256, 64 + 2;
    Mxfp4 = 39, "MXFP4", 32, 1 + 16;
    Nvfp4 = 40, "NVFP4", 64, 4 + 32;
    Q1_0 = 41, "Q1_0", 128, 2 + 16;
}

impl GgmlType {
    /// The type of a name such as `Q4_K` or `q4_k`; `None` if there is none.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|t| t.name().eq_ignore_ascii_case(name))
    }

    /// Bytes of `elements` elements; `None` if they are no whole number of blocks or the product overflows.
    pub fn size_bytes(self, elements: u64) -> Option<u64> {
        let block_elements = self.block_elements() as u64;
        if !elements.is_multiple_of(block_elements) {
            return None;
        }
        (elements / block_elements).checked_mul(self.block_bytes() as u64)
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_names_lead_back_to_their_type() {
        for &ty in GgmlType::ALL {
            assert_eq!(GgmlType::from_id(ty.id()), Some(ty));
            assert_eq!(GgmlType::from_name(&ty.name().to_lowercase()), Some(ty));
        }
        assert!(GgmlType::ALL.windows(2).all(|pair| pair[0].id() < pair[1].id()));
    }

    #[test]
    fn removed_ids_are_unknown() {
        for id in [4, 5, 31, 32, 33, 36, 37, 38, u32::MAX] {
            assert_eq!(GgmlType::from_id(id), None, "id {id}");
        }
    }

    #[test]
    fn block_bytes_are_those_of_ggml() {
        let bytes = |name: &str| GgmlType::from_name(name).map(GgmlType::block_bytes);
        for (name, want) in [
            ("Q4_0", 18),
            ("Q4_1", 20),
            ("Q5_0", 22),
            ("Q5_1", 24),
            ("Q8_0", 34),
            ("Q8_1", 36),
            ("Q2_K", 84),
            ("Q3_K", 110),
            ("Q4_K", 144),
            ("Q5_K", 176),
            ("Q6_K", 210),
            ("Q8_K", 292),
            ("IQ2_XXS", 66),
            ("IQ2_XS", 74),
            ("IQ3_XXS", 98),
            ("IQ1_S", 50),
            ("IQ4_NL", 18),
            ("IQ3_S", 110),
            ("IQ2_S", 82),
            ("IQ4_XS", 136),
            ("IQ1_M", 56),
            ("TQ1_0", 54),
            ("TQ2_0", 66),
            ("MXFP4", 17),
        ] {
            assert_eq!(bytes(name), Some(want), "{name}");
        }
    }

    #[test]
    fn size_needs_whole_blocks_and_does_not_overflow() {
        assert_eq!(GgmlType::Q8_0.size_bytes(64), Some(68));
        assert_eq!(GgmlType::Q8_0.size_bytes(65), None);
        assert_eq!(GgmlType::F64.size_bytes(u64::MAX), None);
    }
}
