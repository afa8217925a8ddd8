//! Which layers see all keys and which a window: from `layer_types`, or from the rules that older files imply.

use crate::{checkpoint::Fields, error::ModelError};

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// Readers of the windows of all layers; the result has one entry per layer, `None` for a layer that sees all keys.
pub(crate) struct Windows;

impl Windows {
    /// As Qwen2 and Qwen3 say it: windows only with `use_sliding_window`, from layer `max_window_layers` on or by `layer_types`.
    ///
    /// # Errors
    /// [`ModelError`] naming the field at fault.
    pub(crate) fn of_qwen(fields: &Fields<'_>, layers: usize) -> Result<Vec<Option<usize>>, ModelError> {
        let is_used = fields.find_flag("use_sliding_window")?.unwrap_or(false);
        // Files say 0 for "from the first layer on".
        let first = match fields.value("max_window_layers") {
            None => 28,
            Some(value) => value
                .as_u64()
                .and_then(|count| usize::try_from(count).ok())
                .ok_or_else(|| fields.unsupported("max_window_layers", "a count of layers"))?,
        };
        // Present and null means none; absent is what the class takes.
        let stated = match fields.contains("sliding_window") {
            true if is_used => fields.find_size("sliding_window")?,
            true => {
                fields.skip(&["sliding_window"]);
                None
            }
            false => is_used.then_some(4096),
        };
        let default = |layer: usize| stated.is_some() && layer >= first;
        Self::by_types(fields, layers, stated, default)
    }

    /// By `layer_types` if the file has it, else by `is_sliding` for each layer. `window`: that of the sliding layers.
    ///
    /// # Errors
    /// [`ModelError`] if the list is of another length, holds another word, or a layer slides without a window.
    pub(crate) fn by_types(
        fields: &Fields<'_>,
        layers: usize,
        window: Option<usize>,
        is_sliding: impl Fn(usize) -> bool,
    ) -> Result<Vec<Option<usize>>, ModelError> {
        let Some(types) = fields.find_texts("layer_types")? else {
            return Ok((0..layers).map(|layer| window.filter(|_| is_sliding(layer))).collect());
        };
        if types.len() != layers {
            return Err(ModelError::Unsupported {
                key: fields.name("layer_types"),
                found: format!("a list of {}", types.len()),
                supported: format!("one entry for each of the {layers} layers"),
            });
        }
        let one = |kind: &&str| match *kind {
            FULL => Ok(None),
            SLIDING if window.is_some() => Ok(window),
            SLIDING => Err(ModelError::MissingField { field: fields.name("sliding_window") }),
            other => Err(ModelError::Unsupported {
                key: format!("an entry of {}", fields.name("layer_types")),
                found: crate::checkpoint::one_line(other),
                supported: format!("{FULL}, {SLIDING}"),
            }),
        };
        types.iter().map(one).collect()
    }
}
