#![doc = include_str!("../README.md")]

#[cfg(feature = "candle")]
mod candle;
mod codebook;
mod error;
mod isa;
mod kernels;
mod layout;
mod matmul;
mod number;
mod packed;
mod quantize;
pub mod reference;
mod weight_type;

#[cfg(feature = "candle")]
pub use candle::PackedLinear;
pub use error::Error;
pub use isa::{Isa, Settings};
pub use matmul::{
    Combine, Group, Output, group_scratch_bytes, linear, linear_gated_until, linear_groups, linear_until, scratch_bytes,
};
pub use number::bf16_operand;
pub use packed::{PackedWeight, Packer};
pub use quantize::quantize;
pub use weight_type::WeightType;
