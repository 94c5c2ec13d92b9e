//! Tables that grow with their queue pairs, and become small again with them.

use core::borrow::Borrow;
use core::hash::{BuildHasher, Hash};
use std::collections::HashMap;

/// Takes an entry out of a table, and gives room back of which seven eighths are empty.
pub(crate) fn take<K, V, S, Q>(table: &mut HashMap<K, V, S>, key: &Q) -> Option<V>
where
    K: Eq + Hash + Borrow<Q>,
    Q: Eq + Hash + ?Sized,
    S: BuildHasher,
{
    let value = table.remove(key)?;
    if table.len() < table.capacity() / 8 {
        table.shrink_to(table.len().saturating_mul(2));
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_gives_the_room_back_that_it_had() {
        let mut table = HashMap::new();
        for turn in 0..3 {
            table.extend((0..10_000).map(|key| (key, turn)));
            for key in 0..10_000 {
                assert_eq!(take(&mut table, &key), Some(turn));
                assert!(table.capacity() <= 16 * table.len().max(4), "{}", table.len());
            }
            assert_eq!(take(&mut table, &0), None);
        }
    }
}
