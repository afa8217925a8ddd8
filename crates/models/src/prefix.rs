//! What must be equal for the blocks of one run to be those of another.

use crate::{
    executor::cost::CpuSettings,
    model::{Constant, Model},
};
use plimsoll_kvcache::CacheIdentity;
use plimsoll_linear::PackedWeight;
use sha2::{Digest, Sha256};
use std::fmt::{self, Write};

/// Version of the contract on the order of sums. It changes with any change of a result's bits, and blocks of another version are not used.
pub const CONTRACT_VERSION: u32 = 1;

/// Hashes what is written to it.
struct HashText<'a>(&'a mut Sha256);

impl Write for HashText<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}

impl Model {
    /// What names the blocks of this model's sequences in a prefix cache: a hash of the program and of all weights as packed, and the
    /// contract's version. Reads every weight once: about a second per GiB.
    #[must_use]
    pub fn cache_identity(&self, settings: &CpuSettings) -> CacheIdentity {
        let mut hash = Sha256::new();
        let program = &self.architecture().program;
        // Everything that enters the arithmetic is printed: numbers as the shortest text that reads back to the same bits.
        let text = format_args!("{program:?} {:?}", settings.attention_route);
        HashText(&mut hash).write_fmt(text).expect("the writer takes everything");
        for slot in program.constants() {
            hash.update((slot.index() as u64).to_le_bytes());
            // The same bytes are other numbers in another type.
            let mut put = |weight: &PackedWeight| {
                hash.update(weight.weight_type().name());
                hash.update(weight.packed());
            };
            match self.constant(*slot) {
                Some(Constant::Matrix(weight)) => put(weight),
                Some(Constant::Experts(weights)) => weights.iter().for_each(put),
                Some(Constant::Vector(values)) => hash.update(bytemuck::cast_slice::<f32, u8>(values)),
                None => {}
            }
        }
        CacheIdentity { model: hash.finalize().into(), contract: CONTRACT_VERSION }
    }
}
