//! Comparing logits.

use sha2::{Digest, Sha256};

/// Index of the largest value, the first of equals.
///
/// # Panics
/// If `row` is empty or holds a NaN.
#[must_use]
pub fn argmax(row: &[f32]) -> u32 {
    let mut best = 0;
    for (index, &value) in row.iter().enumerate() {
        assert!(!value.is_nan(), "logit {index} is NaN");
        if value > row[best] {
            best = index;
        }
    }
    u32::try_from(best).expect("token ids have 32 bits")
}

/// Largest distance of two values at the same place; infinite where one is no number.
///
/// # Panics
/// If the lengths differ.
#[must_use]
pub fn max_abs_diff(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "lengths differ");
    let distance = |(a, b): (&f32, &f32)| if (a - b).is_nan() { f32::INFINITY } else { (a - b).abs() };
    a.iter().zip(b).map(distance).fold(0.0, f32::max)
}

/// Logarithms of the probabilities that logits stand for, computed in f64.
#[must_use]
pub fn ln_softmax(logits: &[f32]) -> Vec<f64> {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&x| (f64::from(x) - max).exp()).sum();
    let ln_sum = max + sum.ln();
    logits.iter().map(|&x| f64::from(x) - ln_sum).collect()
}

/// `KL(p || q)` in nats, from logarithms of probabilities.
#[must_use]
pub fn kl(ln_p: &[f64], ln_q: &[f64]) -> f64 {
    ln_p.iter().zip(ln_q).map(|(p, q)| p.exp() * (p - q)).sum()
}

/// SHA-256 of a row's bits.
pub type RowHash = [u8; 32];

/// SHA-256 of these values' bits.
#[must_use]
pub fn hash_row(row: &[f32]) -> RowHash {
    let mut hash = Sha256::new();
    for value in row {
        hash.update(value.to_le_bytes());
    }
    hash.finalize().into()
}

/// A hash for each row of `logits`, `[rows, width]`.
#[must_use]
pub fn hash_rows(logits: &[f32], width: usize) -> Vec<RowHash> {
    logits.chunks_exact(width).map(hash_row).collect()
}

/// Lowercase hexadecimal.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
