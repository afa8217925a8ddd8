//! Chat templates of real models.

use plimsoll_models::chat::{ChatError, ChatTemplate, Message};

/// As in SmolLM2-135M-Instruct's metadata.
const SMOLLM2: &str = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// In the manner of Llama 3.2: date, slices, filters, macro-free tool switch, trimmed blocks.
const LLAMA3: &str = r#"{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{%- if tools is not none %}{{- tools | tojson(indent=4) }}{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- else %}
        {{- raise_exception("This model only supports\nsingle tool-calls at once!") }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"#;

fn message(role: &str, content: &str) -> Message {
    Message::new(role, content)
}

fn render(source: &str, messages: &[Message]) -> Result<String, ChatError> {
    // 2024-02-29 12:00 UTC
    ChatTemplate::new(source, Some("<s>"), None)?.render_at(messages, true, 1_709_208_000)
}

#[test]
fn smollm2_adds_its_system_message_unless_there_is_one() {
    assert_eq!(
        render(SMOLLM2, &[message("user", " Hi <b> & \"you\" ")]).unwrap(),
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
         <|im_start|>user\n Hi <b> & \"you\" <|im_end|>\n<|im_start|>assistant\n"
    );
    let template = ChatTemplate::new(SMOLLM2, None, None).unwrap();
    let messages = [message("system", "S"), message("user", "U"), message("assistant", "A")];
    assert_eq!(
        template.render(&messages, false).unwrap(),
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n"
    );
}

#[test]
fn llama3_style_templates_work() {
    assert_eq!(
        render(LLAMA3, &[message("system", " S "), message("user", " U\n")]).unwrap(),
        "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 29 Feb 2024\n\nS<|eot_id|>\
         <|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    );
}

#[test]
fn a_template_may_refuse_messages_and_the_reason_is_one_line() {
    let error = render(LLAMA3, &[message("ipython", "x")]).unwrap_err();
    assert_eq!(error, ChatError::Refused { message: "This model only supports single tool-calls at once!".to_owned() });
    assert!(!error.to_string().contains('\n'));
}

#[test]
fn faulty_templates_give_their_line() {
    let syntax = render("a\n{% if %}", &[]).unwrap_err();
    assert!(matches!(syntax, ChatError::Syntax { line: 2, .. }), "{syntax:?}");
    let failing = render("a\n\n{{ nothing.at.all }}", &[]).unwrap_err();
    assert!(matches!(failing, ChatError::Render { line: 3, .. }), "{failing:?}");
    assert!(!failing.to_string().contains('\n'));
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}";
    assert!(matches!(render(endless, &[]), Err(ChatError::Render { .. })));
}

#[test]
fn python_methods_loop_controls_and_json_are_there() {
    let check = |source: &str, want: &str| {
        let messages = [message("user", "a<b> é"), message("stop", "")];
        assert_eq!(render(source, &messages).unwrap(), want, "{source}");
    };
    check("{{ messages[0].content.upper().split(' ')[0] }}", "A<B>");
    check("{{ messages[0]['content'].startswith('a') }}{{ messages[0].get('x', 'none') }}", "Truenone");
    check("{% for m in messages %}{% if m.role == 'stop' %}{% break %}{% endif %}{{ m.role }}{% endfor %}", "user");
    check("{{ messages[0] | tojson }}", r#"{"role": "user", "content": "a<b> é"}"#);
    check("{{ [1, none, true, {}] | tojson }}", "[1, null, true, {}]");
    check("{{ {'a': [1]} | tojson(indent=2) }}", "{\n  \"a\": [\n    1\n  ]\n}");
    check("{{ eos_token is defined }}{{ bos_token }}{{ tools is none }}", "False<s>True");
    check("  {% if true %}\nx\n{% endif %}\n", "x\n");
    check("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "2");
}
