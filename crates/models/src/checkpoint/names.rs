//! What a constant is called in a folder: from GGUF's names, which programs use, to those that `transformers` writes.

/// The parts of names below `blk.<layer>.` that most architectures share. `{e}` stands for the number of an expert.
const SHARED: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts.{e}.gate_proj"),
    ("ffn_up_exps", "mlp.experts.{e}.up_proj"),
    ("ffn_down_exps", "mlp.experts.{e}.down_proj"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
];

/// How the tensors of one folder are named.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    /// Before `embed_tokens`, `layers` and `norm`.
    prefix: String,
    /// The whole name of the output head's matrix.
    head: String,
    /// Before the shared table: parts below `blk.<layer>.` with or without their `.weight` or `.bias`.
    overrides: &'static [(&'static str, &'static str)],
}

impl Names {
    /// Names below `prefix` (`model.`), with an architecture's own words for some parts.
    pub(crate) fn new(prefix: &str, head: &str, overrides: &'static [(&'static str, &'static str)]) -> Self {
        Self { prefix: prefix.to_owned(), head: head.to_owned(), overrides }
    }

    /// Finds out which prefix a folder uses, by its embedding table. `exists`: whether the folder has such a tensor.
    pub(crate) fn found(exists: impl Fn(&str) -> bool, overrides: &'static [(&'static str, &'static str)]) -> Self {
        let prefixes = ["model.", "model.language_model.", "language_model.model.", ""];
        let prefix = prefixes.into_iter().find(|prefix| exists(&format!("{prefix}embed_tokens.weight")));
        let heads = ["lm_head.weight", "language_model.lm_head.weight"];
        let head = heads.into_iter().find(|head| exists(head));
        Self::new(prefix.unwrap_or("model."), head.unwrap_or("lm_head.weight"), overrides)
    }

    /// Before `layers.<layer>.`: for tensors whose names are put together by an architecture.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The name of `canonical` in the folder, with `{e}` where an expert's number belongs.
    ///
    /// # Panics
    /// If there is none: a mistake in an architecture, whatever the folder.
    pub(crate) fn of(&self, canonical: &str) -> String {
        match canonical {
            "token_embd.weight" => return format!("{}embed_tokens.weight", self.prefix),
            "output_norm.weight" => return format!("{}norm.weight", self.prefix),
            "output.weight" => return self.head.clone(),
            _ => {}
        }
        let within = canonical.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        let Some((layer, part)) = within else { panic!("\"{canonical}\" has no name in a folder") };
        let (stem, end) = part.rsplit_once('.').unwrap_or((part, ""));
        let lookup = |wanted: &str| {
            let mut table = self.overrides.iter().chain(SHARED);
            table.find(|(known, _)| *known == wanted).map(|(_, name)| *name)
        };
        let prefix = &self.prefix;
        match (lookup(part), lookup(stem)) {
            (Some(whole), _) => format!("{prefix}layers.{layer}.{whole}"),
            (None, Some(name)) => format!("{prefix}layers.{layer}.{name}.{end}"),
            (None, None) => panic!("\"{canonical}\" has no name in a folder"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_prefix_that_the_folder_uses() {
        for (table, head, want, want_head) in [
            ("model.embed_tokens.weight", "lm_head.weight", "model.layers.3.self_attn.q_proj.bias", "lm_head.weight"),
            (
                "language_model.model.embed_tokens.weight",
                "language_model.lm_head.weight",
                "language_model.model.layers.3.self_attn.q_proj.bias",
                "language_model.lm_head.weight",
            ),
            ("embed_tokens.weight", "", "layers.3.self_attn.q_proj.bias", "lm_head.weight"),
        ] {
            let names = Names::found(|name| name == table || name == head, &[]);
            assert_eq!(names.of("blk.3.attn_q.bias"), want);
            assert_eq!(
                (names.of("output.weight"), names.of("token_embd.weight")),
                (want_head.to_owned(), table.to_owned())
            );
        }
    }

    #[test]
    fn an_architecture_may_have_other_words_for_a_part_or_a_whole_name() {
        let names = Names::new(
            "model.",
            "lm_head.weight",
            &[("ffn_norm", "pre_feedforward_layernorm"), ("ssm_a", "linear_attn.A_log")],
        );
        assert_eq!(names.of("blk.0.ffn_norm.weight"), "model.layers.0.pre_feedforward_layernorm.weight");
        assert_eq!(names.of("blk.0.ssm_a"), "model.layers.0.linear_attn.A_log");
        assert_eq!(names.of("blk.12.ffn_up_exps.weight"), "model.layers.12.mlp.experts.{e}.up_proj.weight");
    }
}
