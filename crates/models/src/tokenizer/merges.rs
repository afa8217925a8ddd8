//! Byte pair merges: the table, and the merging of one piece.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::{
    TokenizerError,
    vocab::{self, Literal, Vocabulary},
};

/// No token, no position, no rank.
pub(super) const NONE: u32 = u32::MAX;

/// Up to this many symbols a plain scan for the best pair beats a heap.
const SCAN_SYMBOLS: usize = 48;

/// Two neighbours and what they become.
#[derive(Debug, Clone, Copy)]
pub(super) struct Merge {
    left: u32,
    right: u32,
    pub(super) rank: u32,
    pub(super) merged: u32,
}

impl Merge {
    pub(super) const fn new(left: u32, right: u32, rank: u32, merged: u32) -> Self {
        Self { left, right, rank, merged }
    }
}

/// No merge.
pub(super) const FREE: Merge = Merge { left: NONE, right: NONE, rank: NONE, merged: NONE };

/// Which neighbours may be merged.
pub(super) trait Merges {
    /// The merge of two tokens, [`FREE`] if there is none.
    fn get(&self, left: u32, right: u32) -> Merge;

    /// Replaces neighbours by their merge, lowest rank first and leftmost first among equals, until no merge applies,
    /// and appends what is left to `out`. Empties `work.ids`. Sennrich et al. 2016, arXiv:1508.07909, section 3.2.
    fn apply(&self, work: &mut MergeWork, out: &mut Vec<u32>)
    where
        Self: Sized,
    {
        if work.ids.len() <= SCAN_SYMBOLS {
            apply_by_scan(self, work);
            out.append(&mut work.ids);
        } else {
            apply_by_heap(self, work, out);
        }
    }
}

/// Byte pair merges by (left, right): open addressing, a power of two long, never full.
#[derive(Debug)]
pub(super) struct MergeTable {
    slots: Vec<Merge>,
}

/// Splits a merge such as `"Ġ the"`.
pub(super) fn split_merge(rank: usize, merge: &str) -> Result<(&str, &str), TokenizerError> {
    let halves = merge.split_once(' ').filter(|(_, right)| !right.contains(' '));
    halves.ok_or_else(|| TokenizerError::MergeSyntax { rank, merge: merge.to_owned() })
}

impl MergeTable {
    /// Resolves the halves of merges, best first, to token ids. Of two equal merges the later rank counts.
    pub(super) fn new<'a>(
        merges: impl Iterator<Item = Result<(&'a str, &'a str), TokenizerError>>,
        vocabulary: &Vocabulary,
        literals: &[Literal],
    ) -> Result<Self, TokenizerError> {
        let mut resolved = Vec::with_capacity(merges.size_hint().0);
        let mut bytes = Vec::new();
        let specials = vocab::by_text(literals);
        let alphabet = vocabulary.alphabet();
        for (rank, merge) in merges.enumerate() {
            let (left, right) = merge?;
            let shown = || [left, right].join(" ");
            if left.is_empty() || right.is_empty() {
                return Err(TokenizerError::MergeSyntax { rank, merge: shown() });
            }
            let missing = || TokenizerError::MergeOutOfVocabulary { rank, merge: shown() };
            let mut resolve = |left: &str, right: &str| {
                bytes.clear();
                let ordinary = alphabet.decode_into(left, &mut bytes) && alphabet.decode_into(right, &mut bytes);
                ordinary
                    .then(|| vocabulary.lookup(&bytes))
                    .flatten()
                    .or_else(|| specials.get([left, right].concat().as_str()).copied())
                    .ok_or_else(missing)
            };
            resolved.push(Merge {
                left: resolve(left, "")?,
                right: resolve(right, "")?,
                rank: u32::try_from(rank).ok().filter(|&rank| rank != NONE).ok_or_else(missing)?,
                merged: resolve(left, right)?,
            });
        }
        let mut table = Self { slots: vec![FREE; (resolved.len() * 4 / 3 + 1).next_power_of_two()] };
        for merge in resolved {
            let slot = table.slot(merge.left, merge.right);
            table.slots[slot] = merge;
        }
        Ok(table)
    }

    fn slot(&self, left: u32, right: u32) -> usize {
        let mask = self.slots.len() - 1;
        let key = (u64::from(left) << 32 | u64::from(right)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut slot = (key >> 32) as usize & mask;
        while self.slots[slot].left != NONE && (self.slots[slot].left, self.slots[slot].right) != (left, right) {
            slot = (slot + 1) & mask;
        }
        slot
    }
}

impl Merges for MergeTable {
    fn get(&self, left: u32, right: u32) -> Merge {
        self.slots[self.slot(left, right)]
    }
}

fn apply_by_scan(merges: &impl Merges, work: &mut MergeWork) {
    let MergeWork { ids, pairs, .. } = work;
    pairs.clear();
    pairs.extend(ids.windows(2).map(|pair| merges.get(pair[0], pair[1])));
    while let Some((at, best)) = pairs.iter().enumerate().min_by_key(|(_, pair)| pair.rank) {
        if best.rank == NONE {
            break;
        }
        ids[at] = best.merged;
        ids.remove(at + 1);
        pairs.remove(at);
        if at > 0 {
            pairs[at - 1] = merges.get(ids[at - 1], ids[at]);
        }
        if let Some(&right) = ids.get(at + 1) {
            pairs[at] = merges.get(ids[at], right);
        }
    }
}

fn apply_by_heap(merges: &impl Merges, work: &mut MergeWork, out: &mut Vec<u32>) {
    let MergeWork { ids, nodes, heap, .. } = work;
    let count = u32::try_from(ids.len()).expect("pieces are cut below 2^30 bytes");
    nodes.clear();
    nodes.reserve(ids.len());
    let mut entries = std::mem::take(heap).into_vec();
    entries.clear();
    entries.reserve(ids.len());
    for at in 0..count {
        let id = ids[at as usize];
        let next = if at + 1 == count { NONE } else { at + 1 };
        let rank = ids.get(at as usize + 1).map_or(NONE, |&right| merges.get(id, right).rank);
        nodes.push(Node { id, previous: at.checked_sub(1).unwrap_or(NONE), next, rank });
        if rank != NONE {
            entries.push(Reverse((rank, at)));
        }
    }
    ids.clear();
    *heap = BinaryHeap::from(entries);
    while let Some(Reverse((rank, at))) = heap.pop() {
        let node = nodes[at as usize];
        // Left from a pair that another merge has since changed. A new pair of the same rank at this place is as good.
        if node.rank != rank {
            continue;
        }
        let right = nodes[node.next as usize];
        let merged = merges.get(node.id, right.id).merged;
        nodes[node.next as usize].rank = NONE;
        nodes[at as usize] = Node { id: merged, next: right.next, ..node };
        if right.next != NONE {
            nodes[right.next as usize].previous = at;
        }
        for left in [node.previous, at] {
            if left == NONE {
                continue;
            }
            let Node { id, next, .. } = nodes[left as usize];
            let rank = if next == NONE { NONE } else { merges.get(id, nodes[next as usize].id).rank };
            nodes[left as usize].rank = rank;
            if rank != NONE {
                heap.push(Reverse((rank, left)));
            }
        }
    }
    let mut at = 0;
    while at != NONE {
        let node = nodes[at as usize];
        out.push(node.id);
        at = node.next;
    }
}

/// One symbol of a long piece: a token, its neighbours, and the rank of its pair with the next.
#[derive(Debug, Clone, Copy)]
struct Node {
    id: u32,
    previous: u32,
    next: u32,
    rank: u32,
}

/// Buffers of one encoding, reused from piece to piece. About 40 bytes per byte of the longest piece.
#[derive(Debug, Default)]
pub(super) struct MergeWork {
    /// The piece as tokens of one byte or character; filled by the caller.
    pub(super) ids: Vec<u32>,
    pairs: Vec<Merge>,
    nodes: Vec<Node>,
    /// Pairs by (rank, position), so that the lowest rank comes first and the leftmost of equals.
    heap: BinaryHeap<Reverse<(u32, u32)>>,
}
