//! Errors of attaching services.

use crate::limit;
use crate::patterns::PatternsError;
use crate::selector::{Selector, Side};

/// The names of loaded services in a sentence.
fn listed(names: &[String]) -> String {
    if names.is_empty() { "none is".to_owned() } else { format!("there are {}", names.join(", ")) }
}

/// Why services are not loaded or unloaded, attached or detached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no such service.
    #[error("there is no service {name:?}; there are {}", .known.join(", "))]
    Unknown {
        /// The name that was given.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// A service of that name is compiled in.
    #[error("a service {0} is compiled in; give yours another name")]
    Native(String),
    /// A service of that name is loaded.
    #[error("a service {0} is loaded already; unload it first")]
    Loaded(String),
    /// No more services can be loaded.
    #[error("{most} services are loaded, which is the most; unload one first", most = limit::LOADED)]
    LoadedFull,
    /// No service of that name is loaded.
    #[error("no service {name:?} is loaded; {}", listed(.known))]
    NotLoaded {
        /// The name that was given.
        name: String,
        /// The names of those that are.
        known: Vec<String>,
    },
    /// A loaded service is in chains that are attached.
    #[error(
        "{name} is attached in {chains} places; detach it first, or unload it with --now: chains that have it then keep it until they are detached"
    )]
    InUse {
        /// The service.
        name: String,
        /// The chains.
        chains: usize,
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
    /// A classifier is to refuse a run of words of another length than it can.
    #[error("classifier refuses 1 to 65535 words in a row, not {0:?}; say a number by --words")]
    Words(String),
    /// The classifier's network is none.
    #[error("the classifier's network, which is compiled in, is none; build balboad again")]
    Weights,
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
    Twice(String),
    /// A service checks payload that another would have changed.
    #[error(
        "{checks} checks packets as they come, so it cannot stand behind {rewrites}, which changes them; put {checks} first"
    )]
    CheckBehind {
        /// The service that checks.
        checks: String,
        /// The service before it.
        rewrites: String,
    },
    /// A service takes another form of payload than the services before it give.
    #[error("{name} takes {takes}, and the services before it give {gives}; change their order")]
    Form {
        /// The service.
        name: String,
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
        name: String,
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
        service: String,
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
