//! Address spaces of a card whose queue pairs have one each: whose memory their pages are, where none of them is a window's.

pub use stock_engine::Gone;

/// The object whose rights were taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recall {
    /// Memory on the bus.
    Memory {
        /// First byte.
        iova: u64,
        /// Bytes.
        length: u64,
    },
    /// All that a queue pair gives its peer.
    Qp {
        /// Its number.
        qpn: u32,
    },
}

/// The pages of memory in the address spaces of a card's vFPGAs.
pub trait Spaces: Send + Sync {
    /// The entries of the small-page TLB with which a transfer without a page goes on. There always are some: without
    /// memory they lead to the spare page.
    fn mend(&self, vfpga: u8, ctid: u8, vaddr: u64) -> Vec<[u64; 2]>;

    /// Entries, so many at most, for the place of those whose memory on the bus lies in these ranges, each by its first
    /// byte and its bytes, and goes away.
    fn replace(&self, vfpga: u8, ranges: &[(u64, u64)], most: usize) -> Vec<Gone>;

    /// Waits until a queue pair has told its peer the outcome of the peer's requests, which closing would lose, and
    /// where it is to begin anew, until none of its packets is out; for a moment at most.
    fn settle(&self, vfpga: u8, qpn: u32, anew: bool);

    /// Stops the sending of a queue pair. Gives entries that replace those of its address space, so many at most: it
    /// reaches no memory any more.
    fn close(&self, vfpga: u8, qpn: u32, most: usize) -> Vec<Gone>;

    /// It does reach none: nothing is on its way to any, either.
    fn closed(&self, vfpga: u8, qpn: u32);

    /// Further entries of pages that were opened for a queue pair and will be used; `None` when all are filled in.
    fn fill(&self, vfpga: u8) -> Option<Vec<[u64; 2]>>;

    /// Closes pages that were opened for queue pairs, `most` entries at most: gives the entries that the card is to
    /// remove.
    fn shut(&self, vfpga: u8, most: usize) -> Vec<Gone>;

    /// All of them are removed, and the card has confirmed it of those that the caller was given.
    fn is_shut(&self, vfpga: u8);

    /// Marks pages of queue pairs to be closed where keys and rights no longer allow access.
    fn lapse(&self, vfpga: u8);

    /// The removal of entries, so many at most, of pages of queue pairs without windows of which rights were taken away: from
    /// an address space and an address there on, which become those to go on from. They are asked for again.
    fn recall(&self, vfpga: u8, of: Recall, from: &mut (u8, u64), most: usize) -> Vec<Gone>;

    /// The words that remove the entries which lead to memory without an owner, so that they are asked for again.
    fn surface(&self, vfpga: u8) -> Vec<[u64; 2]>;

    /// The card was given these words.
    fn surfaced(&self, vfpga: u8);

    /// Why a vFPGA has refused the last command, where there is more to say than its status.
    fn reason(&self, vfpga: u8) -> Option<String>;

    /// Tells the other cards of this process that the card forgets its queue pairs, and lets go of the card.
    fn end(&self);
}
