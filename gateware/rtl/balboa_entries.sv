// Entries of queues, and how many are posted, read for several queues at once.
//
// A queue has one slot at most, for blocks from its next entry on, to which those behind them come while it is used, and for
// how many its record says are posted. It has them until it is freed, or another queue has it in its place: one that nobody
// waits to look at may be given, unless it has a record, for which no doorbell would ring once more.
module balboa_entries #(
    parameter int unsigned Queues = 128,
    parameter int unsigned Slots = 8,
    // No entry has more blocks.
    parameter int unsigned EntryBlocks = 8,
    localparam int unsigned PLACE_BITS = $clog2(Queues)
) (
    input  logic                  clk,
    input  logic                  rst_n,
    // The queue that is worked on: its slot, the blocks that that has or is to have, and that all, or an entry, is there.
    input  logic [PLACE_BITS-1:0] place,
    output logic                  has_slot,
    output logic                  is_there,
    output logic [           5:0] blocks_left,
    // Its record comes, or is there, and is taken.
    output logic                  is_record_asked,
    output logic                  has_record,
    output logic [          31:0] producer,
    input  logic                  takes_record,
    input  logic [           2:0] block_number,
    output logic [         511:0] block,
    // Blocks of it are done with; the slot is not used any more.
    input  logic                  takes,
    input  logic [           4:0] taken,
    input  logic                  frees,
    // The slot of a queue whose entries are to be forgotten; of all.
    input  logic                  forgets,
    input  logic [PLACE_BITS-1:0] forgotten,
    input  logic                  clears,
    // The queue that is worked on is to be looked at once its slot is there; a queue has been.
    input  logic                  looks,
    input  logic                  rests,
    input  logic [PLACE_BITS-1:0] rested,
    // A queue that is to be looked at, whose slot is there: they go round, as each is passed by.
    output logic                  is_due,
    output logic [PLACE_BITS-1:0] due,
    input  logic                  passes,
    // Whether some other queue has a slot, and is to be looked at by that.
    input  logic [PLACE_BITS-1:0] other,
    output logic                  has_other,
    output logic                  is_other_awaited,
    // Blocks from an address on are to be read into a slot, or the record of a queue; those behind the end of the ring are
    // asked for in a second cycle.
    output logic                  has_room,
    // It is of no queue.
    output logic                  has_spare,
    input  logic                  asks,
    // Of the queue that is asked for: it is to be looked at then.
    input  logic                  ask_looks,
    input  logic                  asks_more,
    input  logic                  ask_is_record,
    input  logic                  ask_is_last,
    // There is room in the slot of the queue that is worked on for the blocks behind it; another read of it may begin.
    output logic                  has_room_ahead,
    output logic                  may_read_ahead,
    input  logic                  asks_ahead,
    input  logic [          47:0] ask_address,
    input  logic [           4:0] ask_blocks,
    // A ring is out of reach; that is told.
    output logic                  has_fault,
    input  logic                  tells_fault,
    output logic                  is_quiet,
    // Host memory.
    output logic                  read_valid,
    input  logic                  read_ready,
    output logic [          47:0] read_address,
    output logic [          27:0] read_length,
    input  logic                  recv_valid,
    output logic                  recv_ready,
    input  logic [         511:0] recv_data,
    input  logic                  recv_last,
    input  logic                  fault_valid
);
  localparam int unsigned SLOT_BITS = $clog2(Slots);
  localparam int unsigned BLOCKS = 32;
  localparam int unsigned BLOCK_BITS = $clog2(BLOCKS);
  // What is asked for at a time.
  localparam int unsigned BURST = 16;
  // A slot has this many reads at most.
  localparam int unsigned READS = 3;

  typedef logic [SLOT_BITS-1:0] slot_t;
  typedef logic [BLOCK_BITS:0] count_t;

  typedef struct packed {
    slot_t       slot;
    logic        is_record;
    logic [4:0]  blocks;
    logic [47:0] address;
  } read_t;

  logic   [     Slots-1:0] is_used;
  logic   [     Slots-1:0] is_dropped;
  logic   [     Slots-1:0] is_known;
  logic   [     Slots-1:0] is_coming;
  logic   [          31:0] producers  [       Slots];
  logic   [     Slots-1:0] is_awaited;
  logic   [PLACE_BITS-1:0] places     [       Slots];
  // Blocks that were asked for, that came, and that are done with.
  count_t                  wanted     [       Slots];
  count_t                  count      [       Slots];
  count_t                  done       [       Slots];
  // Reads that are under way.
  logic   [           1:0] reads_left [       Slots];
  logic   [     Slots-1:0] is_ready;
  logic   [         511:0] blocks     [Slots*BLOCKS];
  slot_t                   slot;
  slot_t                   free;
  // The slot that was asked for last.
  slot_t                   asked;

  // ---- The slot of a queue

  always_comb begin
    slot     = '0;
    has_slot = 1'b0;
    for (int i = Slots - 1; i >= 0; i--) begin
      if (is_used[i] && !is_dropped[i] && places[i] == place) begin
        has_slot = 1'b1;
        slot     = slot_t'(i);
      end
    end
  end
  // All of it is there, or all of an entry.
  always_comb begin
    for (int i = 0; i < Slots; i++) is_ready[i] = reads_left[i] == '0 || count[i] - done[i] >= count_t'(EntryBlocks);
  end
  assign is_there        = is_ready[slot];
  assign is_record_asked = has_slot && (is_known[slot] || is_coming[slot]);
  assign has_record      = has_slot && is_known[slot];
  assign producer        = producers[slot];
  assign blocks_left     = wanted[slot] - done[slot];
  assign block           = blocks[{slot, done[slot][BLOCK_BITS-1:0]+BLOCK_BITS'(block_number)}];
  assign has_room_ahead  = blocks_left <= count_t'(BLOCKS - BURST);
  assign may_read_ahead  = reads_left[slot] != 2'(READS);

  // ---- A slot for another queue: one that is free, or the oldest that may be given up

  logic [Slots-1:0] may_give;

  always_comb begin
    for (int i = 0; i < Slots; i++) may_give[i] = is_used[i] && reads_left[i] == '0 && !is_awaited[i] && !is_known[i];
    free = '0;
    for (int i = Slots - 1; i >= 0; i--) if (may_give[slot_t'(i)+asked+1'b1]) free = slot_t'(i) + asked + 1'b1;
    for (int i = Slots - 1; i >= 0; i--) if (!is_used[i]) free = slot_t'(i);
  end

  // ---- Reads

  logic  has_read;
  logic  has_read_room;
  logic  has_order_room;
  logic  is_under_way;
  read_t read;
  read_t coming;
  slot_t ask_slot;
  logic  comes;
  logic  ends;

  balboa_fifo #(
      .Width($bits(read_t)),
      .Depth(4 * Slots)
  ) reads (
      .clk,
      .rst_n,
      .in_valid (asks || asks_more || asks_ahead),
      .in_ready (has_read_room),
      .in_data  ({ask_slot, ask_is_record, ask_blocks, ask_address}),
      .out_valid(has_read),
      .out_ready(read_ready),
      .out_data (read)
  );
  balboa_fifo #(
      .Width($bits(read_t)),
      .Depth(4 * Slots)
  ) order (
      .clk,
      .rst_n,
      .in_valid (read_valid && read_ready),
      .in_ready (has_order_room),
      .in_data  (read),
      .out_valid(is_under_way),
      .out_ready(ends),
      .out_data (coming)
  );
  always_comb begin
    ask_slot = slot;
    if (asks_more) ask_slot = asked;
    if (asks) ask_slot = free;
  end
  assign read_valid   = has_read;
  assign read_address = read.address;
  assign read_length  = 28'({read.blocks, 6'd0});
  assign recv_ready   = is_under_way;
  assign comes        = recv_valid && recv_ready;
  assign ends         = (comes && recv_last) || fault_valid;
  assign has_room     = (is_used != '1 || may_give != '0) && has_read_room && has_order_room;
  assign has_spare    = is_used != '1;
  assign is_quiet     = !has_read && !is_under_way;

  logic [Slots-1:0] drops;
  logic [      1:0] reads_next[Slots];

  // A slot that is forgotten, or out of reach, is used until nothing comes to it any more.
  always_comb begin
    for (int i = 0; i < Slots; i++) begin
      drops[i] = (forgets && is_used[i] && places[i] == forgotten) || (frees && slot == slot_t'(i)) ||
          (fault_valid && coming.slot == slot_t'(i));
      reads_next[i] = reads_left[i] - 2'(ends && coming.slot == slot_t'(i)) + 2'(asks_ahead && slot == slot_t'(i));
      if (asks && free == slot_t'(i)) reads_next[i] = ask_is_last ? 2'd1 : 2'd2;
    end
  end

  always_ff @(posedge clk) begin
    for (int i = 0; i < Slots; i++) begin
      if (!rst_n || clears) begin
        is_used[i]    <= 1'b0;
        is_dropped[i] <= 1'b0;
        reads_left[i] <= '0;
        is_known[i]   <= 1'b0;
        is_coming[i]  <= 1'b0;
      end else begin
        reads_left[i] <= reads_next[i];
        if (drops[i]) is_dropped[i] <= 1'b1;
        if ((drops[i] || is_dropped[i]) && reads_next[i] == '0) is_used[i] <= 1'b0;
        if (takes_record && slot == slot_t'(i)) is_known[i] <= 1'b0;
        if (asks_ahead && ask_is_record && slot == slot_t'(i)) is_coming[i] <= 1'b1;
        if (ends && coming.is_record && coming.slot == slot_t'(i)) begin
          is_known[i]  <= 1'b1;
          is_coming[i] <= 1'b0;
        end
        if (asks && free == slot_t'(i)) begin
          is_used[i]    <= 1'b1;
          is_dropped[i] <= 1'b0;
          is_known[i]   <= 1'b0;
          is_coming[i]  <= ask_is_record;
        end
      end
    end
  end

  always_ff @(posedge clk) begin
    if (!rst_n || clears) has_fault <= 1'b0;
    else if (fault_valid) has_fault <= 1'b1;
    else if (tells_fault) has_fault <= 1'b0;
  end

  always_ff @(posedge clk) begin
    if (comes && coming.is_record) producers[coming.slot] <= recv_data[31:0];
    if (comes && !coming.is_record) begin
      blocks[{coming.slot, count[coming.slot][BLOCK_BITS-1:0]}] <= recv_data;
      count[coming.slot] <= count[coming.slot] + 1'b1;
    end
    if (takes) done[slot] <= done[slot] + count_t'(taken);
    if (asks_ahead && !ask_is_record) wanted[slot] <= wanted[slot] + count_t'(ask_blocks);
    if (asks_more) wanted[asked] <= wanted[asked] + count_t'(ask_blocks);
    if (asks) begin
      asked        <= free;
      places[free] <= place;
      wanted[free] <= ask_is_record ? '0 : count_t'(ask_blocks);
      count[free]  <= '0;
      done[free]   <= '0;
    end
  end

  // ---- Turns of queues whose slots are there

  logic  [Slots-1:0] is_slot_due;
  slot_t             last_due;
  slot_t             next_due;

  assign is_slot_due = is_used & is_ready & is_awaited & ~is_dropped;
  assign due         = places[next_due];
  always_comb begin
    has_other        = 1'b0;
    is_other_awaited = 1'b0;
    for (int i = 0; i < Slots; i++) begin
      if (is_used[i] && !is_dropped[i] && places[i] == other) begin
        has_other = 1'b1;
        if (is_awaited[i]) is_other_awaited = 1'b1;
      end
    end
  end

  balboa_pick #(
      .Places(Slots)
  ) turns (
      .due   (is_slot_due),
      .last  (last_due),
      .is_due(is_due),
      .next  (next_due)
  );

  // Those that are used alone count.
  always_ff @(posedge clk) begin
    for (int i = 0; i < Slots; i++) begin
      if (rests && places[i] == rested) is_awaited[i] <= 1'b0;
      if (looks && places[i] == place) is_awaited[i] <= 1'b1;
    end
    if (asks) is_awaited[free] <= ask_looks;
  end

  always_ff @(posedge clk) begin
    if (!rst_n) last_due <= '0;
    else if (passes) last_due <= next_due;
  end
endmodule
