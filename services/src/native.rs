//! The services that are compiled in.

use std::sync::Arc;

use crate::preprocess::Preprocess;
use crate::service::PacketService;

/// Makes a service.
type Make = fn() -> Arc<dyn PacketService>;

/// How each is made.
const NATIVE: [(&str, Make); 1] = [(Preprocess::NAME, || Arc::new(Preprocess))];

/// The service of that name that is compiled in.
#[must_use]
pub fn native(name: &str) -> Option<Arc<dyn PacketService>> {
    NATIVE.iter().find(|(its, _)| *its == name).map(|(_, make)| make())
}

/// The names of those services.
pub fn native_names() -> impl Iterator<Item = &'static str> {
    NATIVE.iter().map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_the_name_by_which_it_is_found_and_fits_a_chain_alone() {
        for name in native_names() {
            let service = native(name).unwrap();
            assert_eq!(service.about().name, name);
            crate::Chain::new(vec![service]).unwrap();
        }
    }
}
