//! Random weights and inputs, and one way to call the product.

use std::sync::atomic::AtomicBool;

use half::f16;
use plimsoll_linear::{Isa, Output, PackedWeight, Settings, WeightType, linear, linear_gated_until, scratch_bytes};

/// xorshift64*: small, seeded, the same everywhere.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn bits(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.bits() as usize % end
    }

    /// Uniform in -1..1.
    pub(crate) fn unit(&mut self) -> f32 {
        self.bits().cast_signed() as f32 / 2f32.powi(31)
    }

    pub(crate) fn vector(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.unit()).collect()
    }
}

/// Stored bytes of `[out_features, in_features]` with finite values of the size real weights have.
pub(crate) fn stored(ty: WeightType, out_features: usize, in_features: usize, random: &mut Random) -> Vec<u8> {
    let blocks = out_features * in_features / ty.block_elements();
    let mut bytes = Vec::with_capacity(blocks * ty.block_bytes());
    for _ in 0..blocks {
        let start = bytes.len();
        match ty {
            WeightType::F32 => bytes.extend(random.unit().to_le_bytes()),
            WeightType::F16 => bytes.extend(f16::from_f32(random.unit()).to_le_bytes()),
            WeightType::Bf16 => bytes.extend(half::bf16::from_f32(random.unit()).to_le_bytes()),
            _ => bytes.extend((0..ty.block_bytes()).map(|_| random.bits().to_le_bytes()[0])),
        }
        if ty == WeightType::Mxfp4 {
            // An exponent: values of 2^-13 to 12 * 2^-6.
            bytes[start] = 115 + (random.bits() % 8).to_le_bytes()[0];
        }
        let factors: &[usize] = match ty {
            WeightType::Q4_0 | WeightType::Q5_0 | WeightType::Q8_0 | WeightType::Iq4Nl | WeightType::Iq4Xs => &[0],
            WeightType::Q4_1 | WeightType::Q5_1 | WeightType::Q4K | WeightType::Q5K => &[0, 2],
            WeightType::Q2K => &[80, 82],
            WeightType::Q3K => &[108],
            WeightType::Q6K => &[208],
            WeightType::F32 | WeightType::F16 | WeightType::Bf16 | WeightType::Mxfp4 => &[],
            other => panic!("where are the factors of {other}?"),
        };
        for at in factors {
            let factor = f16::from_f32(random.unit() / 64.0).to_le_bytes();
            bytes[start + at..][..2].copy_from_slice(&factor);
        }
    }
    bytes
}

/// Any bytes at all: NaN and infinite scales, denormals, signalling NaNs.
pub(crate) fn garbage(ty: WeightType, out_features: usize, in_features: usize, random: &mut Random) -> Vec<u8> {
    let len = out_features * in_features / ty.block_elements() * ty.block_bytes();
    (0..len).map(|_| random.bits().to_le_bytes()[0]).collect()
}

pub(crate) fn packed(ty: WeightType, out_features: usize, in_features: usize, bytes: &[u8]) -> PackedWeight {
    PackedWeight::pack(ty, out_features, in_features, bytes, 1).unwrap()
}

/// Runs `body` with exactly `bytes` aligned bytes of scratch, filled with NaNs.
pub(crate) fn with_scratch<T>(bytes: u64, body: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut owned = AlignedBytes::new(usize::try_from(bytes).unwrap());
    body(owned.bytes())
}

/// Aligned bytes without unsafe code: a vector with room to skip to the first aligned byte.
pub(crate) struct AlignedBytes {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBytes {
    pub(crate) fn new(len: usize) -> Self {
        let memory = vec![0xff; len + 63];
        let start = memory.as_ptr().align_offset(64);
        Self { memory, start, len }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.len]
    }
}

/// The product with several weights; outputs start as NaN.
pub(crate) fn product(
    x: &[f32],
    rows: usize,
    parts: &[(&PackedWeight, Option<&[f32]>)],
    settings: Settings,
) -> Vec<Vec<f32>> {
    let shapes: Vec<_> = parts.iter().map(|(weight, _)| (weight.weight_type(), weight.out_features())).collect();
    let mut outs: Vec<_> = shapes.iter().map(|(_, n)| vec![f32::NAN; rows * n]).collect();
    let mut outputs: Vec<_> =
        parts.iter().zip(&mut outs).map(|(&(weight, bias), out)| Output { weight, bias, out }).collect();
    let bytes = scratch_bytes(rows, parts[0].0.in_features(), &shapes, settings);
    with_scratch(bytes, |scratch| linear(x, rows, &mut outputs, scratch, settings));
    outs
}

/// A gated product: what `combine` makes of both outputs, which start as NaN.
pub(crate) fn gated(
    x: &[f32],
    rows: usize,
    [gate, up]: [(&PackedWeight, Option<&[f32]>); 2],
    combine: impl Fn(&mut [f32], &[f32]) + Sync,
    settings: Settings,
) -> Vec<f32> {
    let shapes = [gate, up].map(|(weight, _)| (weight.weight_type(), weight.out_features()));
    let [mut gate_out, mut up_out] = shapes.map(|(_, n)| vec![f32::NAN; rows * n]);
    let outputs = [
        Output { weight: gate.0, bias: gate.1, out: &mut gate_out },
        Output { weight: up.0, bias: up.1, out: &mut up_out },
    ];
    with_scratch(scratch_bytes(rows, gate.0.in_features(), &shapes, settings), |scratch| {
        assert!(linear_gated_until(x, rows, outputs, &combine, scratch, settings, &AtomicBool::new(false)));
    });
    gate_out
}

/// One weight without bias on one thread.
pub(crate) fn simple(x: &[f32], rows: usize, weight: &PackedWeight, isa: Isa) -> Vec<f32> {
    product(x, rows, &[(weight, None)], Settings { isa, threads: 1 }).remove(0)
}

/// Fails with the first place where bits differ.
pub(crate) fn assert_same_bits(got: &[f32], want: &[f32], case: &dyn std::fmt::Display) {
    assert_eq!(got.len(), want.len(), "{case}: lengths");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert_eq!(got.to_bits(), want.to_bits(), "{case}: element {i} is {got:e}, want {want:e}");
    }
}
