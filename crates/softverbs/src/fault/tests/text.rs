//! Plans as text.

use std::time::Duration;

use crate::fault::{Action, Direction, Kind, Kinds, LogTo, Plan, Rule, Which};

/// What is written, and how it is written again; nothing: the same.
const PLANS: &[(&str, &str)] = &[
    ("rtu=drop", ""),
    ("rtu:first=drop", ""),
    ("rtu:1=drop", "rtu:first=drop"),
    ("rtu:1-1=drop", "rtu:first=drop"),
    ("rep:*=drop", "rep=drop"),
    ("in:rep:2=dup", ""),
    ("out:rep:2-5=dup:3", ""),
    ("packet:7-=log", ""),
    ("packet:/50=corrupt", ""),
    ("ack:1%=drop", ""),
    ("ack:0.5%=drop", ""),
    ("ack:0.0001%=drop", ""),
    ("ack:12.50%=drop", "ack:12.5%=drop"),
    ("ack:100%=drop", ""),
    ("any:2s-4s=partition", ""),
    ("any:1.5s-=partition", "any:1500ms-=partition"),
    ("fpdu:100=partition:2s", ""),
    ("send+write=delay:20ms", ""),
    ("write+send=delay:20ms", "send+write=delay:20ms"),
    ("data=delay:100us-1.5ms", "data=delay:100us-1500us"),
    ("data=delay:0ms-1ms", "data=delay:0s-1ms"),
    ("packet:20%=reorder", ""),
    ("packet:20%=reorder:3", ""),
    ("packet:3=corrupt:12", ""),
    ("packet=rate:10M", ""),
    ("packet=rate:1500K", ""),
    ("packet=rate:1.5M", "packet=rate:1500K"),
    ("packet=rate:999", ""),
    ("frame:first=reset", ""),
    ("mpa-request+mpa-reply=split:1", ""),
    ("in:rtu@192.0.2.7:first=drop", ""),
    ("out:rtu@[2001:db8::7]:first=drop", ""),
    ("rtu@[::1]=drop", ""),
    ("rtu=drop,seed=7,log=stderr", ""),
    (" rtu=drop , ack:1%=drop", "rtu=drop,ack:1%=drop"),
    (
        "log=/tmp/some file:1,rtu=drop",
        "rtu=drop,log=/tmp/some file:1",
    ),
    ("rtu=drop,seed=18446744073709551615", ""),
    ("packet=dup:100", ""),
];

#[test]
fn written_and_read() {
    for (text, again) in PLANS {
        let plan = Plan::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let expected = if again.is_empty() { text } else { again };
        assert_eq!(plan.to_string(), *expected);
        assert_eq!(Plan::parse(&plan.to_string()), Ok(plan));
    }
}

#[test]
fn every_kind_has_a_name_of_its_own() {
    for &kind in Kind::ALL {
        assert_eq!(Kind::from_name(kind.name()), Some(kind));
        let plan = Plan::parse(&format!("{kind}=log")).unwrap();
        assert_eq!(plan.rules, [Rule::every(kind, Action::Log)]);
    }
    assert!(Kind::ALL.len() <= 64, "they fit into a set");
}

#[test]
fn what_is_meant() {
    let plan = Plan::parse("in:send+ack@10.0.0.1:2s-=delay:1ms-2ms,seed=5,log=f").unwrap();
    let rule = Rule {
        direction: Some(Direction::In),
        kinds: Kinds::of(&[Kind::Send, Kind::Ack]),
        peer: Some([10, 0, 0, 1].into()),
        which: Which::Time(Duration::from_secs(2), None),
        action: Action::Delay(Duration::from_millis(1), Duration::from_millis(2)),
    };
    let log = Some(LogTo::File("f".into()));
    let expected = Plan {
        rules: vec![rule],
        seed: 5,
        log,
    };
    assert_eq!(plan, expected);
}

#[test]
fn rules_that_a_transport_has_no_frames_for() {
    use crate::device::Transport::{Iwarp, Roce};
    let idle = |text: &str, transport| {
        let plan = Plan::parse(text).unwrap();
        let rule = plan.idle_over(transport);
        rule.map(ToString::to_string)
    };
    assert_eq!(idle("rtu=drop,fpdu=log", Iwarp), Some("rtu=drop".into()));
    assert_eq!(idle("rtu=drop,fpdu=log", Roce), Some("fpdu=log".into()));
    assert_eq!(idle("packet+frame=delay:1ms,any=log", Iwarp), None);
    assert_eq!(idle("packet+frame=delay:1ms,any=log", Roce), None);
}

/// A wrong plan, the part that is to blame, and a word of the reason.
const WRONG: &[(&str, &str, &str)] = &[
    ("", "", "a rule is missing"),
    ("rtu=drop,", "", "a rule is missing"),
    ("rtu", "rtu", "no action"),
    ("rtu=drop,oops", "oops", "no action"),
    ("rtv=drop", "rtv", "mpa-request"),
    ("rtu+=drop", "", "not a kind"),
    ("=drop", "", "not a kind"),
    ("sideways:rtu=drop", "rtu", "not a choice of frames"),
    ("rtu:frist=drop", "frist", "first, 3, 2-5"),
    ("rtu:=drop", "", "not a choice of frames"),
    ("rtu:0=drop", "0", "from 1 on"),
    ("rtu:5-3=drop", "5-3", "before the first"),
    ("rtu:5-x=drop", "x", "from 1 on"),
    ("rtu:/0=drop", "0", "from 1 on"),
    ("rtu:/=drop", "", "from 1 on"),
    ("rtu:0%=drop", "0%", "percentage"),
    ("rtu:101%=drop", "101%", "percentage"),
    ("rtu:0.00001%=drop", "0.00001%", "percentage"),
    ("rtu:2s=drop", "2s", "2s-4s"),
    ("rtu:4s-2s=drop", "4s-2s", "not after"),
    ("rtu:2s-4=drop", "4", "not a time"),
    ("rtu:2-4s=drop", "4s", "from 1 on"),
    ("rtu@10.0.0=drop", "10.0.0", "not an address"),
    ("rtu@[10.0.0.1]=drop", "[10.0.0.1]", "not an address"),
    ("rtu=dorp", "dorp", "not an action"),
    ("rtu=drop:1", "1", "takes nothing"),
    ("rtu=dup:0", "0", "from 1 on"),
    ("rtu=dup:101", "101", "100 at most"),
    ("rtu=dup:4294967295", "4294967295", "100 at most"),
    ("seed=1", "seed=1", "no rule"),
    ("log=stderr,seed=1", "log=stderr,seed=1", "no rule"),
    ("rtu=delay", "delay", "wants a time"),
    ("rtu=delay:5", "5", "not a time"),
    ("rtu=delay:5min", "5min", "not a time"),
    ("rtu=delay:2000000s", "2000000s", "up to a day"),
    ("rtu=delay:5ms-1ms", "5ms-1ms", "shorter"),
    ("rtu=delay:-1ms", "", "not a time"),
    ("rtu=rate:0", "0", "not a rate"),
    ("rtu=rate", "rate", "wants octets"),
    ("rtu=corrupt:x", "x", "octet's place"),
    ("rtu=reset", "reset", "only a TCP connection"),
    ("any=split:1", "split:1", "write `frame`"),
    ("frame=split", "split", "split wants octets"),
    ("fpdu=drop", "drop", "TCP delivers"),
    ("any:5%=drop", "drop", "write `packet`"),
    ("packet+fpdu=dup", "dup", "TCP delivers"),
    ("seed=x", "x", "not a number"),
    ("seed=1,seed=2", "seed=2", "second seed"),
    ("log=", "log=", "stderr"),
    ("log=a,log=b", "log=b", "second log"),
];

#[test]
fn errors_say_where() {
    for (text, part, word) in WRONG {
        let error = Plan::parse(text).expect_err(text);
        assert_eq!(&text[error.place()], *part, "{text}: {error}");
        assert!(error.message().contains(word), "{text}: {error}");
        let shown = error.to_string();
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[1], format!("    {text}"));
        let mark = lines[2].find('^').unwrap() - 4;
        assert_eq!(mark, error.place().start, "{shown}");
    }
}

#[test]
fn the_mark_stands_below_characters_not_octets() {
    let error = Plan::parse("log=dé,rtu=dröp").unwrap_err().to_string();
    assert!(
        error.ends_with("    log=dé,rtu=dröp\n               ^^^^"),
        "{error}"
    );
}

/// Nothing that can be typed makes it panic.
#[test]
fn any_text_at_all() {
    let alphabet: Vec<char> = "rtu+in:@[]=drop,delay:1s-2/%*.é".chars().collect();
    let mut state = 1_u64;
    for _ in 0..20_000 {
        let mut text = String::new();
        for _ in 0..state % 24 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let at = usize::try_from(state >> 33).unwrap() % alphabet.len();
            text.push(alphabet[at]);
        }
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        match Plan::parse(&text) {
            Ok(plan) => assert_eq!(Plan::parse(&plan.to_string()), Ok(plan)),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
