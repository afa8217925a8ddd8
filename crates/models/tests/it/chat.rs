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

/// Each must end in one line within seconds, where the test's own time counts, too: the machine may be busy.
fn check_refused(source: &str, want: &str) {
    let start = std::time::Instant::now();
    let error = render(source, &[message("user", "hello")]).expect_err(&source.chars().take(200).collect::<String>());
    let text = error.to_string();
    assert!(
        text.contains(want),
        "{text:?} should say {want:?}; template {:?}",
        source.chars().take(200).collect::<String>()
    );
    assert!(!text.contains('\n') && text.len() < 500, "{text}");
    assert!(start.elapsed().as_secs() < 10, "{:?} for {text}", start.elapsed());
}

#[test]
fn templates_that_would_take_all_memory_are_ended() {
    let grow = |step: &str| {
        format!("{{% set ns = namespace(s='ab', l=[1]) %}}{{% for i in range(99999) %}}{step}{{% endfor %}}")
    };
    check_refused(&grow("{% set ns.s = ns.s ~ ns.s %}"), "are allowed");
    check_refused(&grow("{% set ns.s = ns.s + ns.s %}"), "are allowed");
    check_refused(&grow("{% set ns.s = [ns.s, ns.s] | join %}"), "are allowed");
    check_refused(&grow("{% set ns.s = ns.s.replace('a', ns.s) %}"), "are allowed");
    check_refused(&grow("{% set ns.s = ns.s | replace('a', ns.s) %}"), "are allowed");
    check_refused(&grow("{% set ns.s = ns.s.join([ns.s, ns.s, ns.s]) %}"), "are allowed");
    check_refused(&grow("{% set ns.s = ns.s | tojson | tojson %}"), "are written");
    check_refused(&grow("{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}"), "are allowed");
    check_refused(&grow("{{ 'x' ~ ns.s }}{% set ns.s = ns.s ~ ns.s %}"), "are allowed");
    // The number of elements or, on a busy machine, the time ends this one.
    check_refused(&grow("{% set ns.l = ns.l + ns.l %}"), "");
    check_refused("{% macro m(x) %}{{ m(x ~ x) }}{% endmacro %}{{ m('a') }}", "");
    check_refused(&"{% for x in [x ~ x] %}".repeat(140), "");
    check_refused(&format!("{{% for i in range(99999) %}}{}{{% endfor %}}", "long text ".repeat(1000)), "");
    check_refused(
        &format!("{{% set x %}}{{% for i in range(99999) %}}{}{{% endfor %}}{{% endset %}}", "t".repeat(100_000)),
        "",
    );
    check_refused("{{ 'a' * 100000000 }}", "multiplication");
    check_refused("{{ '%1000000000d' | format(1) }}", "format");
    check_refused("{{ '{:1000000000}'.format(1) }}", "format");
    check_refused("{{ 'a' | indent(1000000000) }}", "indent");
}

#[test]
fn no_statement_hides_behind_a_comment_or_a_raw_stretch() {
    let growth =
        "{% set ns=namespace(s='ab') %}{% for i in range(40) %}{% set ns.s=ns.s~ns.s %}{% endfor %}{{ ns.s[:2] }}";
    let check = |template: &str| check_refused(&template.replace("GROWTH", growth), "are allowed");
    check("GROWTH");
    // The second brace of `{#}` ends no comment.
    check("{#}{% raw %}#}GROWTH{#{% endraw %}#}");
    check("{#}{{ '#}GROWTH{#' }}#}");
    check("{#}{#}GROWTH{#}#}");
    check("{#-#}GROWTH{#+#}");
    // What ends no raw stretch, must not let a comment begin inside of it.
    for other in [
        "{% endrawx %}",
        "{% endraw x %}",
        "{% endraw",
        "{% endraw- %}",
        "{% endraw --%}",
        "{% endraw }}",
        "{%-- endraw %}",
        "{%+- endraw %}",
        "{% - endraw %}",
        "{%\u{a0}endraw %}",
        "{%\u{b}endraw %}",
        "{% endraw\u{a0}%}",
        "{{ endraw }}",
        "{# endraw #}",
        "{% raw %}",
    ] {
        check(&format!("{{% raw %}}{other}{{# {{% endraw %}}GROWTH#}}"));
        check(&format!("{{%-raw+%}}{other}{{{{ '{{%-endraw-%}}GROWTH' }}}}"));
    }
    // What ends one, and what is inside of the first only.
    for end in ["{%endraw%}", "{%-\n endraw\t-%}", "{%+endraw+%}", "{%\r\u{c}endraw %}", "{%{%endraw%}", "{{%endraw%}"]
    {
        check(&format!("{{% raw %}}{{#{end}GROWTH{{#{end}#}}"));
        check(&format!("{{%-\traw\n+%}}{{% raw %}}{end}GROWTH{{# {end}#}}"));
    }
    // Braces in strings end no tag, and strings no comment.
    check("{{ '}}{#' }}GROWTH{{ '#}' }}");
    check("{{ '\\'}}{#' }}GROWTH{{ '#}' }}");
    check("{% if '%}{% raw %}' %}GROWTH{% endif %}{{ '{% endraw %}' }}");
    check("{# '#}GROWTH{# '#}");
    check("{# {# #}GROWTH{{ '#}' }}");
    check("{{{'a': {'b': '}}'}}}}GROWTH");
    // What has no end is refused, as is what only resembles a raw stretch.
    check_refused("a\n{#}", "line 2: a comment without an end");
    check_refused("a\n\n{# b {% c %}", "line 3: a comment without an end");
    check_refused("{% raw %}\n{% endrawx %}", "line 1: a raw without an end");
    check_refused("{% raw x %}{% endraw %}", "\"raw\" is not supported");
    check_refused("{% raw--%}{% endraw %}", "\"raw\" is not supported");
    check_refused("{% endraw %}", "\"endraw\" is not supported");
}

#[test]
fn raw_stretches_and_comments_are_read_as_the_engine_reads_them() {
    let check = |source: &str, want: &str| assert_eq!(render(source, &[]).unwrap(), want, "{source}");
    check("a{#}b#}c{#-#}d {#- e -#} f", "acdf");
    check("{% raw %}{% endrawx %}{# {% endraw %}a{# #}", "{% endrawx %}{# a");
    check("{% raw %}{%-- endraw %}{% endraw x %}{{ a {%+endraw+%}b", "{%-- endraw %}{% endraw x %}{{ a b");
    check("x {%-raw-%} {{ y {%-\n endraw\t-%} z", "x{{ yz");
    check("{% raw %}{% raw %}{% endraw %}{% set a = 1 %}{{ a }}", "{% raw %}1");
}

#[test]
fn many_tags_and_lines_are_read_in_one_pass() {
    let source = "\n{{1}}".repeat(40_000);
    let start = std::time::Instant::now();
    assert_eq!(render(&source, &[]).unwrap().len(), 80_000);
    assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
    check_refused(&format!("{}{{% with %}}", &source[..6 * 33_333]), "line 33334: the statement \"with\"");
}

#[test]
fn templates_that_would_never_end_are_ended() {
    let three = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}";
    check_refused(three, "");
    assert_eq!(render("{{ 'abc'.count('') }} {{ 'abcabc'.count('bc') }}", &[]).unwrap(), "4 2");
    let slow = "{% set s = messages[0].content %}{% for i in range(60000) %}{% if s ~ s ~ s ~ s ~ s == s %}x{% endif %}{% endfor %}";
    let long = [message("user", &"x".repeat(1 << 20))];
    let error = render(slow, &long).unwrap_err();
    assert!(error.to_string().contains("too long"), "{error}");
}

#[test]
fn templates_that_would_overflow_the_stack_are_refused() {
    let nested =
        |open: &str, close: &str, times: usize| format!("{{{{ {}1{} }}}}", open.repeat(times), close.repeat(times));
    for times in [150, 390, 5000, 60_000] {
        check_refused(&nested("(", ")", times), "");
        check_refused(&nested("[", "]", times), "");
        check_refused(&nested("{'a': ", "}", times), "");
        check_refused(&nested("f(", ")", times), "");
    }
    for times in [1000, 60_000] {
        check_refused(&format!("{{{{ {}1 }}}}", "not ".repeat(times)), "400 words");
        check_refused(&format!("{{{{ {}1 }}}}", "-".repeat(times)), "400 words");
        check_refused(&format!("{{{{ a{} }}}}", ".a".repeat(times)), "400 words");
        check_refused(&format!("{{{{ a{} }}}}", "|e".repeat(times)), "400 words");
        check_refused(&format!("{{{{ 1{} }}}}", "+1".repeat(times)), "400 words");
    }
    check_refused(&format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(1000)), "elif");
    check_refused(&"{% if a %}".repeat(5000), "");
    check_refused(&"{% for a in b %}".repeat(5000), "");
    check_refused(
        "{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}",
        "deep",
    );
    check_refused(
        "{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% set ns.x = {'a': ns.x} %}{% endfor %}",
        "deep",
    );
    check_refused("{% set ns = namespace(x=1) %}{% set ns.x = ns %}{{ ns }}", "deep");
    check_refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "");
    check_refused(&"x".repeat(300_000), "at most 262144");
}

#[test]
fn the_deepest_that_is_let_through_fits_the_stack() {
    // Just below the limits: whatever comes of it, the process lives.
    let below = |text: &str, times: usize| text.repeat(times);
    let _ = render(&format!("{{{{ {}1 }}}}", below("not ", 398)), &[]);
    let _ = render(&format!("{{{{ {}1 }}}}", below("-", 398)), &[]);
    let _ = render(&format!("{{{{ a{} }}}}", below(".a", 198)), &[]);
    let _ = render(&format!("{{{{ 1{} }}}}", below("+1", 198)), &[]);
    let _ = render(&format!("{{{{ {}1{} }}}}", below("[", 70), below("]", 70)), &[]);
    let elifs = format!("{{% if a %}}{}{{% endif %}}", below("{% elif a %}", 399));
    assert_eq!(render(&elifs, &[]).unwrap(), "");
    let ifs = format!("{}x{}", below("{% if true %}", 100), below("{% endif %}", 100));
    assert_eq!(render(&ifs, &[]).unwrap(), "x");
    let kept = below("{% set ns.x = [ns.x] %}", 60);
    let deep = format!("{{% set ns = namespace(x=1) %}}{kept}{{{{ ns.x | tojson }}}}{{{{ ns.x == ns.x }}}}");
    assert!(render(&deep, &[]).is_ok());
}

#[test]
fn checks_change_no_text() {
    let check =
        |source: &str, want: &str| assert_eq!(render(source, &[message("user", "u")]).unwrap(), want, "{source}");
    check("a\n{% set x = 1 %}\nb {%- set y = 2 -%} c\n{{ x }}{{ y }}", "a\nbc\n12");
    check("{%- for m in messages -%}\n {{ m.role }}\n{%- endfor -%}\n!", "user!");
    check("{% set a, b = [1, 2] %}{{ a }}{{ b }}{% set x -%} t {%- endset %}{{ x }}", "12t");
    check("{% macro m(a, b='x,)') %}\n{{ a }}{{ b }}{% endmacro %}{{ m('1') }}|{{ m('1', b=2) }}", "1x,)|12");
    check(
        "{% raw %}{{ x }}{% set %}{% endraw %}{# {% set #}{{ '}}' }}{{ {'a': {'b': 1}}.a.b }}",
        "{{ x }}{% set %}}}1",
    );
    check("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1");
    check("{% generation %}x{% endgeneration %}", "x");
    check(
        "{{ ', '.join(['a', 'b']) }} {{ 'a-b'.split('-') | join('+') }} {{ 'aXbX'.replace('X', '.', 1) }}",
        "a, b a+b a.bX",
    );
}

#[test]
fn long_conversations_are_no_hostile_ones() {
    let source = "{% set messages = messages[1:] %}{% set ns = namespace(n=0, last='') %}{% for m in messages %}\
        {% set content = m.content %}{% if loop.last %}{% set ns.last = content %}{% endif %}{% set ns.n = ns.n + 1 %}\
        {{ '<' + m.role + '>' + content | trim + '\n' }}{% endfor %}{{ ns.n }} {{ ns.last }}";
    let many: Vec<Message> = (0..5000).map(|i| message("user", &i.to_string())).collect();
    assert!(render(source, &many).unwrap().ends_with("<user>4999\n4999 4999"));
    let long = [message("user", "a"), message("user", &"x".repeat(8 << 20))];
    assert_eq!(render(source, &long).unwrap().len(), 2 * (8 << 20) + "<user>\n1 ".len());
}
