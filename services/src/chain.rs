//! Services in their order.

use std::sync::Arc;

use crate::error::Error;
use crate::limit;
use crate::loaded::Loaded;
use crate::native::{native, natives};
use crate::part::{Operation, Operations};
use crate::selector::Side;
use crate::service::{About, PacketService, Stages};
use crate::settings::Settings;

/// Services that fit together, in their order, and the ends of messages at which they stand.
#[derive(Clone, Debug)]
pub struct Chain {
    services: Vec<Arc<dyn PacketService>>,
    side: Side,
}

impl Chain {
    /// Checks that services fit together in this order.
    ///
    /// # Errors
    /// Why they do not.
    pub fn new(services: Vec<Arc<dyn PacketService>>) -> Result<Self, Error> {
        if !(1..=limit::CHAIN).contains(&services.len()) {
            return Err(Error::Length(services.len()));
        }
        for (number, service) in services.iter().enumerate() {
            let about = service.about();
            let before = services.get(..number).unwrap_or_default();
            check_place(about, before)?;
        }
        let abouts = || services.iter().map(|service| service.about());
        let state = |about: &About| about.check_state.saturating_add(about.act_state);
        let state = abouts().map(state).fold(0, usize::saturating_add);
        if state > limit::STATE {
            return Err(Error::State(state));
        }
        let chain = Self { services, side: Side::Both };
        match chain.work() {
            work if work > limit::WORK => Err(Error::Work(work)),
            _ => Ok(chain),
        }
    }

    /// The units of work that they have declared for a packet.
    pub(crate) fn work(&self) -> u32 {
        let works = self.services.iter().map(|service| service.about().work);
        works.fold(0, u32::saturating_add)
    }

    /// A chain of services that are compiled in, by their names, with the settings for them.
    ///
    /// # Errors
    /// As [`Chain::with`].
    pub fn named<T: AsRef<str>>(names: &[T], settings: Settings) -> Result<Self, Error> {
        Self::with(names, settings, &Loaded::default())
    }

    /// A chain of services that are compiled in or were loaded, by their names, with the settings for them.
    ///
    /// # Errors
    /// Where there is no such service, they do not fit together, or a setting is for none of them or not as it should be.
    pub fn with<T: AsRef<str>>(
        names: &[T],
        mut settings: Settings,
        loaded: &Loaded,
    ) -> Result<Self, Error> {
        if !(1..=limit::CHAIN).contains(&names.len()) {
            return Err(Error::Length(names.len()));
        }
        let mut services: Vec<Arc<dyn PacketService>> = Vec::new();
        for name in names {
            let name = name.as_ref();
            // One that stands there already has taken its settings.
            if let Some(other) = services.iter().find(|other| other.about().name == name) {
                return Err(Error::Twice(other.about().name.to_string()));
            }
            let service = loaded.find(name).map(Ok).or_else(|| native(name, &mut settings));
            services.push(service.ok_or_else(|| unknown(name, loaded))??);
        }
        settings.finish()?;
        Self::new(services)
    }

    /// Has the chain stand at one end of messages alone.
    ///
    /// # Errors
    /// [`Error::Side`] where one of the services has nothing to do there.
    pub fn at(self, side: Side) -> Result<Self, Error> {
        let has_work = |about: &About| {
            Operations::each().any(|it| receives(about, side, it) || sends(about, side, it))
        };
        let mut abouts = self.services.iter().map(|service| service.about());
        let idle = abouts.find(|about| !has_work(about)).map(|about| about.name.to_string());
        match idle {
            Some(name) => Err(Error::Side { name, side }),
            None => Ok(Self { side, ..self }),
        }
    }

    /// The services.
    #[must_use]
    pub fn services(&self) -> &[Arc<dyn PacketService>] {
        &self.services
    }

    /// The ends of messages at which they stand.
    #[must_use]
    pub const fn side(&self) -> Side {
        self.side
    }

    /// The names of the services.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.services.iter().map(|service| service.about().name.to_string()).collect()
    }

    /// Whether any of the services sees messages of an operation that come.
    pub(crate) fn sees(&self, operation: Operation) -> bool {
        self.services.iter().any(|service| receives(service.about(), self.side, operation))
    }

    /// Whether one of the services changes messages of an operation that leave.
    pub(crate) fn transforms(&self, about: &About, operation: Operation) -> bool {
        sends(about, self.side, operation)
    }

    /// The first service that changes payload which leaves.
    pub(crate) fn transforming(&self) -> Option<&About> {
        let changes = |about: &&About| Operations::each().any(|it| sends(about, self.side, it));
        self.services.iter().map(|service| service.about()).find(changes)
    }
}

/// The refusal of a name that no service has.
fn unknown(name: &str, loaded: &Loaded) -> Error {
    let known = natives().chain(loaded.abouts()).map(|about| about.name.into_owned());
    Error::Unknown { name: name.into(), known: known.collect() }
}

/// Whether a service at a side sees messages of an operation as they come.
fn receives(about: &About, side: Side, operation: Operation) -> bool {
    let Stages { check, act, .. } = about.stages;
    side.receives(operation) && about.operations.has(operation) && (check || act)
}

/// Whether a service at a side changes messages of an operation as they leave.
fn sends(about: &About, side: Side, operation: Operation) -> bool {
    side.sends(operation) && about.operations.has(operation) && about.stages.transform
}

/// Checks that a service can stand behind others.
fn check_place(about: &About, before: &[Arc<dyn PacketService>]) -> Result<(), Error> {
    let name = &about.name;
    if before.iter().any(|other| other.about().name == *name) {
        return Err(Error::Twice(name.to_string()));
    }
    let rewrites = before.iter().map(|other| other.about()).find(|other| other.stages.rewrites);
    if let Some(other) = rewrites.filter(|_| about.stages.check) {
        return Err(Error::CheckBehind {
            checks: name.to_string(),
            rewrites: other.name.to_string(),
        });
    }
    let gives = before.iter().rev().find_map(|other| other.about().gives);
    match (about.takes, gives) {
        (Some(takes), Some(gives)) if takes != gives => {
            Err(Error::Form { name: name.to_string(), takes, gives })
        }
        _ => Ok(()),
    }
}
