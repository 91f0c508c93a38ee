//! One timer a source, kept in order of time.

use std::collections::{BTreeSet, HashMap};

use softverbs_proto::time::Time;

use super::sources::Token;

#[derive(Debug, Default)]
pub(super) struct Timers {
    order: BTreeSet<(Time, Token)>,
    by_token: HashMap<Token, Time>,
}

impl Timers {
    /// Sets or clears the timer of a source. Whether it is now the first one.
    pub(super) fn set(&mut self, token: Token, at: Option<Time>) -> bool {
        let before = match at {
            Some(at) => self.by_token.insert(token, at),
            None => self.by_token.remove(&token),
        };
        if let Some(before) = before {
            self.order.remove(&(before, token));
        }
        let Some(at) = at else { return false };
        self.order.insert((at, token));
        self.order.first() == Some(&(at, token))
    }

    /// When the first timer fires.
    pub(super) fn next(&self) -> Option<Time> {
        self.order.first().map(|&(at, _)| at)
    }

    /// Takes a timer that has fired.
    pub(super) fn pop_due(&mut self, now: Time) -> Option<Token> {
        let &(at, token) = self.order.first()?;
        if at > now {
            return None;
        }
        self.order.pop_first();
        self.by_token.remove(&token);
        Some(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn fires_in_order_and_only_once() {
        let at = |ms| Time::new(Duration::from_millis(ms));
        let (a, b) = (Token::reserved(7), Token::reserved(8));
        let mut timers = Timers::default();
        assert!(timers.set(a, Some(at(20))));
        assert!(timers.set(b, Some(at(10))));
        assert!(!timers.set(a, Some(at(30))), "moved behind the other one");
        assert_eq!(timers.next(), Some(at(10)));
        assert_eq!(timers.pop_due(at(9)), None);
        assert_eq!(timers.pop_due(at(35)), Some(b));
        assert_eq!(timers.pop_due(at(35)), Some(a));
        assert_eq!(timers.pop_due(at(35)), None);
        timers.set(a, Some(at(1)));
        timers.set(a, None);
        assert_eq!(timers.next(), None);
    }
}
