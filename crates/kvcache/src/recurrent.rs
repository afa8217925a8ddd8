//! The state of one recurrent layer: what holds now, and what the pass under way makes of it.

use std::mem;

use crate::aligned::AlignedBytes;
use crate::{Error, RecurrentSpec};

/// Two buffers that change places when a pass is done.
#[derive(Debug)]
pub(crate) struct Recurrent {
    spec: RecurrentSpec,
    /// State after `len` tokens, and the one that a pass writes; absent where there are no elements.
    buffers: Option<[AlignedBytes; 2]>,
    len: usize,
    /// Tokens after the pass under way, once it has asked for the state.
    staged: Option<usize>,
}

/// State of a recurrent layer around the rows of a pass.
#[derive(Debug)]
pub struct StateStep<'a> {
    /// State before the first row; zero at the start of a sequence.
    pub before: &'a [f32],
    /// Where the state after the last row goes. Holds anything until then.
    pub after: &'a mut [f32],
}

impl Recurrent {
    pub(crate) fn new(spec: RecurrentSpec) -> Result<Self, Error> {
        let bytes = spec.buffer_bytes();
        let zeroed = || AlignedBytes::zeroed(bytes).ok_or(Error::OutOfMemory { bytes });
        let buffers = if bytes == 0 { None } else { Some([zeroed()?, zeroed()?]) };
        Ok(Self { spec, buffers, len: 0, staged: None })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.buffers.iter().flatten().map(|buffer| buffer.len() as u64).sum()
    }

    /// Whether the state can be taken back to `tokens`: only to the start, or not at all.
    pub(crate) fn check_truncate(&self, layer: usize, tokens: usize) -> Result<(), Error> {
        if tokens > 0 && tokens < self.len {
            return Err(Error::NeedsPrefill { layer, tokens, len_tokens: self.len, from: 0 });
        }
        Ok(())
    }

    /// Drops what a pass has written so far; at 0, forgets everything.
    pub(crate) fn truncate(&mut self, tokens: usize) {
        self.staged = None;
        if tokens == 0 && self.len > 0 {
            self.len = 0;
            if let Some([current, _]) = &mut self.buffers {
                current.fill(0);
            }
        }
    }

    pub(crate) fn advance(&mut self, layer: usize, start: usize, end: usize) -> Result<StateStep<'_>, Error> {
        self.check_truncate(layer, start)?;
        if start > self.len {
            return Err(Error::Gap { layer, start, len_tokens: self.len });
        }
        if start < self.len {
            self.truncate(start);
        }
        self.staged = Some(end);
        let Some([current, next]) = &mut self.buffers else { return Ok(StateStep { before: &[], after: &mut [] }) };
        let elements = self.spec.elements;
        Ok(StateStep {
            before: &bytemuck::cast_slice(current)[..elements],
            after: &mut bytemuck::cast_slice_mut(next)[..elements],
        })
    }

    pub(crate) fn commit(&mut self) {
        let Some(len) = self.staged.take() else { return };
        self.len = len;
        if let Some([current, next]) = &mut self.buffers {
            mem::swap(current, next);
        }
    }
}
