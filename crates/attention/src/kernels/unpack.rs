//! 16-bit pairs to f32 panels.

use super::lanes::Lanes;
use super::source::{Bf16Pairs, F16Pairs, Source};
use super::{Operand, PANEL};

#[inline(always)]
pub(super) fn unpack<L: Lanes>(source: Operand<'_>, k: usize, columns: usize, panel_k: usize, panels: &mut [f32]) {
    source.check(k, columns);
    assert!(k <= panel_k && panels.len() == columns.next_multiple_of(PANEL) * panel_k, "panel bounds");
    match source {
        Operand::Bf16 { data, stride } => {
            unpack_from::<L, _>(Bf16Pairs(data.as_ptr(), stride), k, columns, panel_k, panels)
        }
        Operand::F16 { data, stride } => {
            unpack_from::<L, _>(F16Pairs(data.as_ptr(), stride), k, columns, panel_k, panels)
        }
        Operand::F32 { .. } | Operand::Panels { .. } => unreachable!("only pairs are unpacked"),
    }
}

#[inline(always)]
fn unpack_from<L: Lanes, S: Source>(source: S, k: usize, columns: usize, panel_k: usize, panels: &mut [f32]) {
    let whole_panels = columns / PANEL;
    let to = panels.as_mut_ptr();
    // Rows outside: the source is read in the order it lies in memory.
    for row in (0..k).step_by(2) {
        for panel in 0..whole_panels {
            // SAFETY: `unpack` checked the operand for `k` rows and `columns` columns, and the panels for `panel_k >= k` rows each. The odd
            // row of a last single one is stored only where the panel has it, and cleared below.
            unsafe {
                let (even, odd) = source.pair::<L>(row, panel * PANEL);
                let (even_high, odd_high) = source.pair::<L>(row, panel * PANEL + 8);
                let at = to.add((panel * panel_k + row) * PANEL);
                even.store(at);
                even_high.store(at.add(8));
                if row + 1 < panel_k {
                    odd.store(at.add(PANEL));
                    odd_high.store(at.add(PANEL + 8));
                }
            }
        }
    }
    for panel in panels.chunks_exact_mut(PANEL * panel_k).take(whole_panels) {
        panel[k * PANEL..].fill(0.0);
    }
    let Some(last) = panels.chunks_exact_mut(PANEL * panel_k).nth(whole_panels) else { return };
    for (i, x) in last.iter_mut().enumerate() {
        let (row, column) = (i / PANEL, whole_panels * PANEL + i % PANEL);
        // SAFETY: inside the checked operand.
        *x = if row < k && column < columns { unsafe { source.element(row, column) } } else { 0.0 };
    }
}
