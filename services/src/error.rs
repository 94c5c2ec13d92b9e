//! Errors of attaching services.

use crate::limit;
use crate::patterns::PatternsError;
use crate::selector::{Selector, Side};

/// Why services are not attached, or not detached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no such service.
    #[error("there is no service {name:?}; there are {}", .known.join(", "))]
    Unknown {
        /// The name that was given.
        name: String,
        /// The names that there are.
        known: Vec<&'static str>,
    },
    /// A setting is given that none of the services has.
    #[error(
        "none of the services has a setting {0:?}; name the service that has it, or leave it out"
    )]
    Setting(String),
    /// A setting has two values.
    #[error("the setting {0:?} is given twice; give it once")]
    SettingTwice(String),
    /// An inspection has nothing to look for.
    #[error("inspect has no patterns to look for; name a file of them by --patterns")]
    NoPatterns,
    /// An inspection is to do something unknown.
    #[error("inspect has no mode {0:?}; it has refuse and count")]
    Mode(String),
    /// Patterns are none.
    #[error(transparent)]
    Patterns(#[from] PatternsError),
    /// Patterns are more than an automaton can have.
    #[error(
        "there is no automaton for the patterns; take fewer and shorter ones, none of them empty"
    )]
    Automaton,
    /// A chain is too short or too long.
    #[error("a chain has 1 to {most} services, not {0}", most = limit::CHAIN)]
    Length(usize),
    /// A service stands twice in a chain.
    #[error("{0} stands twice in the chain; name it once")]
    Twice(&'static str),
    /// A service checks payload that another would have changed.
    #[error(
        "{checks} checks packets as they come, so it cannot stand behind {rewrites}, which changes them; put {checks} first"
    )]
    CheckBehind {
        /// The service that checks.
        checks: &'static str,
        /// The service before it.
        rewrites: &'static str,
    },
    /// A service takes another form of payload than the services before it give.
    #[error("{name} takes {takes}, and the services before it give {gives}; change their order")]
    Form {
        /// The service.
        name: &'static str,
        /// The form that it takes.
        takes: &'static str,
        /// The form that comes to it.
        gives: &'static str,
    },
    /// The services of a chain remember too much.
    #[error(
        "the chain wants {0} bytes of state for each way of a connection; {most} are the most", most = limit::STATE
    )]
    State(usize),
    /// The services of a chain work too much.
    #[error("the chain wants {0} units of work for a packet; {most} are the most", most = limit::WORK)]
    Work(u32),
    /// A service has nothing to do at that end of messages.
    #[error("{name} has nothing to do at the {side}; attach it at the other side, or at both")]
    Side {
        /// The service.
        name: &'static str,
        /// The end.
        side: Side,
    },
    /// There is no such queue pair.
    #[error("there is no queue pair {0:#x} on this card; `balboa status` lists them")]
    NoQp(u32),
    /// The queue pair is none that services see.
    #[error("queue pair {0:#x} is none of a reliable connection; services see no other")]
    NotConnection(u32),
    /// The card has no place for services.
    #[error(
        "this card has a published image, whose stack has no place for services; load an image with a queue engine"
    )]
    NoPlace,
    /// Services are attached there already.
    #[error("{0} has services already; detach them first")]
    Taken(Selector),
    /// Nothing is attached there.
    #[error("{0} has no services; `balboa service list` shows where there are some")]
    NotAttached(Selector),
    /// No more chains can be attached.
    #[error("{most} chains are attached, which is the most; detach one first", most = limit::ATTACHED)]
    Full,
    /// No more chains of programs can be attached.
    #[error(
        "programs asked for services of {most} queue pairs on this card, which is the most; destroy one first", most = limit::ASKED
    )]
    TooManyAsked,
    /// A queue pair to which the services are to be attached has some that its program asked for.
    #[error(
        "queue pair {0:#x} has services that its program asked for; detach those first, by --qp {0:#x}"
    )]
    Asked(u32),
    /// A queue pair to which the services are to be attached keeps detached ones.
    #[error(
        "messages of queue pair {0:#x} keep services that were detached; wait until they have ended"
    )]
    Leaving(u32),
    /// The owner of the card has attached services for a connection whose program asked for others.
    #[error(
        "queue pair {qpn:#x} has services that its program asked for, and the owner of the card has attached others to {selector}; make it without"
    )]
    Owners {
        /// The queue pair.
        qpn: u32,
        /// The users of the owner's.
        selector: Selector,
    },
    /// Messages keep services that have been followed by others already.
    #[error(
        "messages of queue pair {0:#x} keep services from before the present ones; wait until they have ended"
    )]
    Followed(u32),
    /// The queue pair is connected already.
    #[error(
        "queue pair {qpn:#x} is connected, and {service} changes what leaves: attach it by the peer's address before the queue pair is connected"
    )]
    Connected {
        /// The queue pair.
        qpn: u32,
        /// The service.
        service: &'static str,
    },
    /// Messages are under way.
    #[error(
        "queue pair {qpn:#x} has messages under way; wait, or detach with --now: a message that has begun then keeps its services to its end"
    )]
    Busy {
        /// The queue pair.
        qpn: u32,
    },
}
