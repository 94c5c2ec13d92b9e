// Entries of queues, and how many are posted, read for several queues at once.
//
// A queue has one slot at most: of its record, or of blocks from its next entry on. What a slot has does not change until it
// is freed, or another queue has it in its place.
module balboa_entries #(
    parameter int unsigned Queues = 128,
    parameter int unsigned Slots = 8,
    // A slot whose queue nobody waits to look at may be given to another one.
    parameter bit MayGive = 1'b0,
    localparam int unsigned PLACE_BITS = $clog2(Queues)
) (
    input  logic                  clk,
    input  logic                  rst_n,
    // The queue that is worked on: its slot, and what that has.
    input  logic [PLACE_BITS-1:0] place,
    output logic                  has_slot,
    output logic                  is_there,
    output logic                  is_record,
    output logic [           4:0] blocks_left,
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
    input  logic                  asks,
    // Of the queue that is asked for: it is to be looked at then.
    input  logic                  ask_looks,
    input  logic                  asks_more,
    input  logic                  ask_is_record,
    input  logic                  ask_is_last,
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
  localparam int unsigned BLOCKS = 16;
  // A slot has two reads at most.
  localparam int unsigned READS = 2 * Slots;

  typedef logic [SLOT_BITS-1:0] slot_t;

  typedef struct packed {
    slot_t       slot;
    logic        is_last;
    logic [4:0]  blocks;
    logic [47:0] address;
  } read_t;

  logic  [     Slots-1:0] is_used;
  logic  [     Slots-1:0] is_whole;
  logic  [     Slots-1:0] is_dropped;
  logic  [     Slots-1:0] has_record;
  logic  [     Slots-1:0] is_awaited;
  logic  [PLACE_BITS-1:0] places     [       Slots];
  logic  [           4:0] count      [       Slots];
  logic  [           4:0] done       [       Slots];
  logic  [         511:0] blocks     [Slots*BLOCKS];
  slot_t                  slot;
  slot_t                  free;
  // The slot that was asked for last.
  slot_t                  asked;
  logic  [           3:0] at;

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
  assign is_there    = is_whole[slot];
  assign is_record   = has_record[slot];
  assign blocks_left = count[slot] - done[slot];
  assign at          = done[slot][3:0] + 4'(block_number);
  assign block       = blocks[{slot, at}];

  // ---- A slot for another queue: one that is free, or the oldest that may be given up

  logic [Slots-1:0] may_give;

  always_comb begin
    for (int i = 0; i < Slots; i++) may_give[i] = MayGive && is_used[i] && is_whole[i] && !is_awaited[i];
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
  logic  comes;
  logic  ends;

  // A slot has two reads at most, so that there is room for all.
  balboa_fifo #(
      .Width($bits(read_t)),
      .Depth(READS)
  ) reads (
      .clk,
      .rst_n,
      .in_valid (asks || asks_more),
      .in_ready (has_read_room),
      .in_data  ({asks ? free : asked, ask_is_last, ask_blocks, ask_address}),
      .out_valid(has_read),
      .out_ready(read_ready),
      .out_data (read)
  );
  balboa_fifo #(
      .Width($bits(read_t)),
      .Depth(READS)
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
  assign read_valid   = has_read;
  assign read_address = read.address;
  assign read_length  = 28'({read.blocks, 6'd0});
  assign recv_ready   = is_under_way;
  assign comes        = recv_valid && recv_ready;
  assign ends         = (comes && recv_last) || fault_valid;
  assign has_room     = (is_used != '1 || may_give != '0) && has_read_room && has_order_room;
  assign is_quiet     = !has_read && !is_under_way;

  always_ff @(posedge clk) begin
    if (!rst_n || clears) begin
      is_used    <= '0;
      is_whole   <= '0;
      is_dropped <= '0;
    end else begin
      if (frees) is_used[slot] <= 1'b0;
      for (int i = 0; i < Slots; i++) begin
        if (forgets && is_used[i] && places[i] == forgotten) begin
          is_used[i]    <= !is_whole[i];
          is_dropped[i] <= 1'b1;
        end
      end
      if (fault_valid) is_dropped[coming.slot] <= 1'b1;
      if (ends && coming.is_last) begin
        is_whole[coming.slot] <= 1'b1;
        if (fault_valid || is_dropped[coming.slot] || (forgets && places[coming.slot] == forgotten))
          is_used[coming.slot] <= 1'b0;
      end
      if (asks) begin
        is_used[free]    <= 1'b1;
        is_whole[free]   <= 1'b0;
        is_dropped[free] <= 1'b0;
      end
    end
  end

  always_ff @(posedge clk) begin
    if (!rst_n || clears) has_fault <= 1'b0;
    else if (fault_valid) has_fault <= 1'b1;
    else if (tells_fault) has_fault <= 1'b0;
  end

  always_ff @(posedge clk) begin
    if (comes) begin
      blocks[{coming.slot, count[coming.slot][3:0]}] <= recv_data;
      count[coming.slot] <= count[coming.slot] + 5'd1;
    end
    if (takes) done[slot] <= done[slot] + taken;
    if (asks) begin
      asked            <= free;
      places[free]     <= place;
      has_record[free] <= ask_is_record;
      count[free]      <= '0;
      done[free]       <= '0;
    end
  end

  // ---- Turns of queues whose slots are there

  logic  [Slots-1:0] is_slot_due;
  slot_t             last_due;
  slot_t             next_due;

  assign is_slot_due = is_used & is_whole & is_awaited & ~is_dropped;
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
    // A turn before that saw nothing of it.
    if (!MayGive && ends && coming.is_last) is_awaited[coming.slot] <= 1'b1;
    if (asks) is_awaited[free] <= ask_looks;
  end

  always_ff @(posedge clk) begin
    if (!rst_n) last_due <= '0;
    else if (passes) last_due <= next_due;
  end
endmodule
