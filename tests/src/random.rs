//! Numbers that look random and are the same in every run.

/// Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators" (SplitMix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.bits() % end as u64).expect("below a usize")
    }

    /// Token ids below `vocab_size`.
    pub fn tokens(&mut self, count: usize, vocab_size: usize) -> Vec<u32> {
        (0..count).map(|_| u32::try_from(self.below(vocab_size)).expect("token ids have 32 bits")).collect()
    }

    /// f32 between `-bound` and `bound`, little-endian.
    pub fn f32_bytes(&mut self, count: usize, bound: f32) -> Vec<u8> {
        let mut next = || {
            let unit = f32::from(u16::try_from(self.bits() >> 48).expect("16 bits")) / 65_536.0;
            (2.0 * unit - 1.0) * bound
        };
        (0..count).flat_map(|_| next().to_le_bytes()).collect()
    }

    /// Parts of at least 1 that add up to `len`: mostly short ones, some long.
    pub fn partition(&mut self, len: usize) -> Vec<usize> {
        let mut parts = Vec::new();
        let mut left = len;
        while left > 0 {
            let most = [3, 20, 70, len][self.below(4)].min(left);
            let part = 1 + self.below(most);
            parts.push(part);
            left -= part;
        }
        parts
    }
}
