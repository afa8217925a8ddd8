//! How a shape is cut into tiles, and how much scratch that takes.

use crate::kernels::{PANEL, RowState};
use crate::{AttnShape, KV_BLOCK_TOKENS, KvDtype, KvLayout, KvValues};

/// From this many rows in a tile on, a 16-bit block is unpacked to f32 once for all of them.
const UNPACK_ROWS: usize = 16;

/// Fewest rows that a tile is cut down to so that every task has work.
const FEW_ROWS: usize = 24;

/// Results of blocks that may wait to be folded, for each task, where a call is cut along its keys.
const TASK_SLOTS: usize = 8;

/// Most results that may wait.
pub(crate) const MAX_SLOTS: usize = 256;

/// f32 values of which a slice of scratch holds a whole number: 64 bytes.
const ALIGN: usize = 16;

/// How a shape is cut into tiles, and the scratch of one task.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) group_size: usize,
    /// Rows of a KV head's axis.
    pub(crate) axis_rows: usize,
    pub(crate) tile_rows: usize,
    pub(crate) tiles: usize,
    pub(crate) tasks: usize,
    pub(crate) unpack: bool,
    /// Whether tasks share out the blocks of a head, because there are too few heads and tiles to go round.
    pub(crate) split: bool,
    /// Bytes of one head of a block where blocks are packed from plain rows, or of its values where they are transposed from the keys.
    packed_bytes: usize,
    /// What the calls of fewer rows that are split take: more rows never take less.
    least_bytes: u64,
    pub(crate) head_dim: usize,
    /// `v_head_dim` in whole panels.
    pub(crate) v_columns: usize,
    pub(crate) v_head_dim: usize,
    pub(crate) kv_heads: usize,
}

impl Plan {
    /// The plan of a call over KV blocks; values that are in the keys have room in each task.
    pub(crate) fn new(shape: &AttnShape, threads: usize) -> Self {
        let group_size = shape.heads.checked_div(shape.kv_heads).unwrap_or(0);
        let kv_heads = shape.kv_heads.max(1);
        let axis_rows = shape.rows * group_size;
        // The tile's queries, outputs and probabilities stay in a second-level cache beside the block.
        let most = match shape.head_dim + shape.v_head_dim {
            ..=256 => 192,
            257..=512 => 96,
            _ => 48,
        };
        // Two tiles a task at least, as far as there are rows: tiles differ in how many keys they see.
        let shared = axis_rows.div_ceil((2 * threads).div_ceil(kv_heads)).max(FEW_ROWS);
        let tile_rows = axis_rows.clamp(1, if threads > 1 { most.min(shared) } else { most });
        let tiles = axis_rows.div_ceil(tile_rows);
        let unpack = shape.kv_dtype != KvDtype::F32 && tile_rows >= UNPACK_ROWS;
        let split = threads > 1 && axis_rows < UNPACK_ROWS && kv_heads < 2 * threads;
        // Of as many tiles as the shortest would make: the scratch of more rows is then never less.
        let items = if split { usize::MAX } else { axis_rows.div_ceil(FEW_ROWS).max(1) * kv_heads };
        let most_split = (UNPACK_ROWS - 1).checked_div(group_size).unwrap_or(0);
        let may_split = threads > 1 && kv_heads < 2 * threads && (1..shape.rows).contains(&most_split);
        let least_bytes =
            if may_split { Self::new(&AttnShape { rows: most_split, ..*shape }, threads).bytes() } else { 0 };
        Self {
            group_size,
            axis_rows,
            tile_rows,
            tiles,
            tasks: threads.min(items).max(1),
            unpack,
            split,
            packed_bytes: match shape.kv_values {
                KvValues::Own => 0,
                KvValues::InKeys => head_layout(shape).v_head_bytes(),
            },
            least_bytes,
            head_dim: shape.head_dim,
            v_columns: shape.v_head_dim.next_multiple_of(PANEL),
            v_head_dim: shape.v_head_dim,
            kv_heads,
        }
    }

    /// The plan of a call over plain rows, with room in each task for the block that it packs.
    #[cfg_attr(not(feature = "candle"), expect(dead_code, reason = "only the tensor API has plain rows"))]
    pub(crate) fn of_rows(shape: &AttnShape, threads: usize) -> Self {
        // Tensors have values of their own, whatever the shape says.
        let (layout, shape) = (head_layout(shape), AttnShape { kv_values: KvValues::Own, ..*shape });
        Self { packed_bytes: layout.k_block_bytes() + layout.v_block_bytes(), ..Self::new(&shape, threads) }
    }

    pub(crate) const fn unpacks(&self) -> bool {
        self.unpack
    }

    /// Scratch of the call.
    pub(crate) fn bytes(&self) -> u64 {
        let shared = if self.split { self.shared_parts().iter().sum() } else { 0 };
        (((shared + self.task_floats() * self.tasks) * size_of::<f32>()) as u64).max(self.least_bytes)
    }

    /// Lengths, in f32, of the parts of one task's scratch: packed block or values, K panels, V panels, queries, probabilities, outputs, states.
    pub(crate) fn parts(&self) -> [usize; 7] {
        let panels = if self.unpack { KV_BLOCK_TOKENS } else { 0 };
        // Queries and outputs are shared by the tasks of a split call.
        let own = if self.split { 0 } else { self.tile_rows };
        [
            self.packed_bytes / size_of::<f32>(),
            self.head_dim * panels,
            self.v_columns * panels,
            own * self.head_dim,
            self.tile_rows * KV_BLOCK_TOKENS,
            own * self.v_columns,
            own * (size_of::<RowState>() / size_of::<f32>()),
        ]
        .map(|len| len.next_multiple_of(ALIGN))
    }

    pub(crate) fn task_floats(&self) -> usize {
        self.parts().iter().sum()
    }

    /// Results of one head of one block that a split call holds at once.
    pub(crate) fn slots(&self) -> usize {
        (TASK_SLOTS * self.tasks).min(MAX_SLOTS)
    }

    /// Lengths, in f32, of what the tasks of a split call share: queries, outputs and states of all heads, products and states of all slots.
    pub(crate) fn shared_parts(&self) -> [usize; 5] {
        let rows = self.kv_heads * self.tile_rows;
        let state = size_of::<RowState>() / size_of::<f32>();
        let waiting = self.slots() * self.tile_rows;
        [rows * self.head_dim, rows * self.v_columns, rows * state, waiting * self.v_columns, waiting * state]
            .map(|len| len.next_multiple_of(ALIGN))
    }
}

/// Layout of a block of one head, with values of its own.
fn head_layout(shape: &AttnShape) -> KvLayout {
    let AttnShape { head_dim, v_head_dim, kv_dtype: dtype, .. } = *shape;
    KvLayout { kv_heads: 1, head_dim, v_head_dim, dtype, values: KvValues::Own }
}
