//! What must be equal for the blocks of one run to be those of another.

use crate::{
    executor::cost::CpuSettings,
    model::{Constant, Model},
};
use plimsoll_kvcache::CacheIdentity;
use plimsoll_linear::PackedWeight;
use sha2::{Digest, Sha256};
use std::{
    fmt::{self, Write},
    sync::{Mutex, PoisonError},
    thread,
};

/// Version of the contract on the order of sums. It changes with any change of a result's bits, and blocks of another version are not used.
pub const CONTRACT_VERSION: u32 = 2;

/// Bytes of weights that are hashed at once. The hash depends on it.
const LEAF_BYTES: usize = 4 << 20;

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
    /// contract's version. Reads every weight once: about a second per GiB, shared by the threads of `settings`. Their number does not
    /// change it.
    #[must_use]
    pub fn cache_identity(&self, settings: &CpuSettings) -> CacheIdentity {
        let mut hash = Sha256::new();
        let program = &self.architecture().program;
        // Everything that enters the arithmetic is printed: numbers as the shortest text that reads back to the same bits.
        let text = format_args!("{program:?} {:?}", settings.attention_route);
        HashText(&mut hash).write_fmt(text).expect("the writer takes everything");
        let mut leaves = Vec::new();
        let mut put = |hash: &mut Sha256, kind: &str, bytes| {
            // Without the lengths, the end of one tensor could be the start of the next; the same bytes are other numbers in another type.
            hash.update(kind);
            hash.update((<[u8]>::len(bytes) as u64).to_le_bytes());
            leaves.extend(bytes.chunks(LEAF_BYTES));
        };
        for slot in program.constants() {
            hash.update((slot.index() as u64).to_le_bytes());
            let of = |weight: &PackedWeight| weight.weight_type().name();
            match self.constant(*slot) {
                Some(Constant::Matrix(weight)) => put(&mut hash, of(weight), weight.packed()),
                Some(Constant::Experts(weights)) => {
                    weights.iter().for_each(|weight| put(&mut hash, of(weight), weight.packed()));
                }
                Some(Constant::Vector(values)) => put(&mut hash, "vector", bytemuck::cast_slice(values)),
                None => {}
            }
        }
        hashes(&leaves, settings.threads).iter().for_each(|leaf| hash.update(leaf));
        CacheIdentity { model: hash.finalize().into(), contract: CONTRACT_VERSION }
    }
}

/// The hash of each leaf, on up to `threads` threads.
fn hashes(leaves: &[&[u8]], threads: usize) -> Vec<[u8; 32]> {
    let mut hashes = vec![[0; 32]; leaves.len()];
    let work = Mutex::new(leaves.iter().zip(&mut hashes));
    let run = || {
        loop {
            let next = work.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((leaf, hash)) = next else { return };
            *hash = Sha256::digest(leaf).into();
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // What a thread that the system refuses would have done, the others do.
            if thread::Builder::new().name("plimsoll-hash".to_owned()).spawn_scoped(scope, run).is_err() {
                break;
            }
        }
        run();
    });
    hashes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_threads_finds_the_hash_of_each_leaf() {
        let bytes: Vec<u8> = (0..1000u32).flat_map(u32::to_le_bytes).collect();
        let leaves: Vec<&[u8]> = bytes.chunks(70).collect();
        let want: Vec<[u8; 32]> = leaves.iter().map(|leaf| Sha256::digest(leaf).into()).collect();
        for threads in [0, 1, 2, 3, 100] {
            assert_eq!(hashes(&leaves, threads), want, "{threads}");
        }
        assert!(hashes(&[], 2).is_empty());
    }
}
