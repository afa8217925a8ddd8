//! A list of borrowed blocks whose memory outlives the borrow.

use std::mem;

use plimsoll_attention::KvBlock;

/// Memory for the block list of a view. Keep one per executor: after the longest sequence it allocates no more.
#[derive(Debug, Default)]
pub struct BlockTable {
    spare: Vec<KvBlock<'static>>,
}

impl BlockTable {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Blocks that fit without allocating.
    pub fn capacity(&self) -> usize {
        self.spare.capacity()
    }

    /// Runs `f` on a list of these blocks.
    pub(crate) fn with<'a, R>(
        &mut self,
        blocks: impl Iterator<Item = KvBlock<'a>>,
        f: impl FnOnce(&[KvBlock<'a>]) -> R,
    ) -> R {
        let mut list: Vec<KvBlock<'a>> = mem::take(&mut self.spare);
        list.extend(blocks);
        let result = f(&list);
        list.clear();
        // An empty list of one lifetime collected into another: the standard library keeps the allocation.
        self.spare = list.into_iter().map(|_| -> KvBlock<'static> { unreachable!("the list is empty") }).collect();
        result
    }
}
