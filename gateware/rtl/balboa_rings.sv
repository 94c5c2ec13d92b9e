// The queues behind a doorbell that a store has rung. A slot stands for a row of places (`balboa_number_pkg`), of which each
// has the page of its queue's client.
//
// A store is taken as it comes, and its queues are named some cycles later, a row of them at a time.
module balboa_rings
  import balboa_card_pkg::*;
  import balboa_engine_pkg::*;
(
    input  logic                               clk,
    input  logic                               rst_n,
    input  logic                               clears,
    // A store to a slot; there is room for one.
    output logic                               has_room,
    input  logic                               rings,
    input  logic                 [        3:0] rung_page,
    input  logic                 [        6:0] rung_place,
    input  doorbell_queue_code_t               rung_kind,
    // Behind a store is no queue.
    output logic                               rings_nobody,
    // A queue is made, which belongs to a client.
    input  logic                               makes,
    input  doorbell_queue_code_t               made_kind,
    input  queue_place_t                       made_place,
    input  logic                 [        7:0] made_client,
    // A queue pair begins, or ceases, to flush what is posted to its own receive queue.
    input  logic                               writes_qp,
    input  qp_place_t                          written_qp,
    input  rq_place_t                          written_rq,
    input  logic                               is_flushing,
    // Queue pairs of a row that are to be looked at, or completion queues, until that is taken.
    output logic                               rings_qps,
    output logic                               rings_cqs,
    output logic                 [        6:0] row,
    output logic                 [COLUMNS-1:0] rung,
    input  logic                               takes,
    output logic                               is_quiet
);
  typedef struct packed {
    logic [1:0] kind;
    logic [3:0] page;
    logic [6:0] row;
  } store_t;

  typedef enum logic [2:0] {
    IDLE,
    // The pages of a store's row stand.
    RING,
    // Receive queues of it that are flushed, one after the other: the queue pair is read, and stands.
    OWNER,
    OWNED,
    // The row of a new queue is read, and written.
    MAKE,
    MADE
  } state_t;

  state_t                                state;
  store_t                                store;
  // Something was made there since all was forgotten.
  logic         [(4<<ROW_BITS)-1:0]      is_row_used;
  logic                                  has_store;
  logic                                  begins;
  logic         [     ROW_BITS+1:0]      ring_address;
  logic                                  ends;
  logic                                  is_made;
  logic         [              1:0]      new_kind;
  queue_place_t                          new_place;
  logic         [              3:0]      new_page;
  logic         [      COLUMNS-1:0][3:0] pages;
  logic         [      COLUMNS-1:0][3:0] pages_made;
  logic         [      COLUMNS-1:0]      hits;
  logic         [      COLUMNS-1:0]      flushed;
  logic         [      COLUMNS-1:0]      flushed_hits;
  logic         [      COLUMNS-1:0]      left;
  logic         [  COLUMN_BITS-1:0]      column;
  logic         [      COLUMNS-1:0]      written_column;
  qp_place_t                             owner;
  logic                                  unused_is_in;
  logic                                  unused_has_any;
  rq_place_t                             unused_next;

  // A slot of a kind that is none rings for nothing.
  balboa_fifo #(
      .Width($bits(store_t)),
      .Depth(4)
  ) stores (
      .clk,
      .rst_n,
      .in_valid (rings && rung_kind[1:0] != 2'd3),
      .in_ready (has_room),
      .in_data  ({rung_kind[1:0], rung_page, rung_place}),
      .out_valid(has_store),
      .out_ready(ends),
      .out_data (store)
  );

  // ---- The pages of all queues

  // A store that waits for no other is looked at as it comes.
  assign begins = has_store || (rings && rung_kind[1:0] != 2'd3);
  always_comb begin
    ring_address = has_store ? {store.kind, store.row} : {rung_kind[1:0], rung_place};
    if (state == MAKE) ring_address = {new_kind, new_place[ROW_BITS-1:0]};
  end
  always_comb begin
    for (int i = 0; i < COLUMNS; i++) hits[i] = is_row_used[{store.kind, store.row}] && pages[i] == store.page;
    pages_made = is_row_used[{new_kind, new_place[ROW_BITS-1:0]}] ? pages : '0;
    pages_made[new_place[QUEUE_PLACE_BITS-1:ROW_BITS]] = new_page;
  end

  balboa_ram #(
      .Width(4 * COLUMNS),
      .Depth(4 << ROW_BITS)
  ) row_pages (
      .clk,
      .write_enable (state == MADE),
      .write_address({new_kind, new_place[ROW_BITS-1:0]}),
      .write_data   (pages_made),
      .read_enable  (state == IDLE || state == MAKE),
      .read_address (ring_address),
      .read_data    (pages)
  );

  // ---- Receive queues that are flushed

  assign written_column = column_of(written_rq);

  balboa_set #(
      .Places (RQ_PLACES),
      .RowBits(ROW_BITS)
  ) flushed_rqs (
      .clk,
      .rst_n,
      .clears,
      .row      (written_rq[ROW_BITS-1:0]),
      .puts     (writes_qp && is_flushing ? written_column : '0),
      .takes    (writes_qp && !is_flushing ? written_column : '0),
      .asked    ({COLUMN_BITS'(0), store.row}),
      .is_in    (unused_is_in),
      .asked_row(flushed),
      .has_any  (unused_has_any),
      .next     (unused_next),
      .passes   (1'b0)
  );
  balboa_ram #(
      .Width(QP_BITS),
      .Depth(RQ_PLACES)
  ) owners (
      .clk,
      .write_enable (writes_qp && is_flushing),
      .write_address(written_rq),
      .write_data   (written_qp),
      .read_enable  (state == OWNER),
      .read_address ({column, store.row}),
      .read_data    (owner)
  );

  // ---- One store after the other

  assign flushed_hits = hits & flushed;
  always_comb begin
    column = '0;
    for (int i = COLUMNS - 1; i >= 0; i--) if (left[i]) column = COLUMN_BITS'(i);
  end
  assign rings_qps = (state == RING && store.kind == DOORBELL_QUEUE_CODE_SEND[1:0] && hits != '0) || state == OWNED;
  assign rings_cqs = state == RING && store.kind == DOORBELL_QUEUE_CODE_COMPLETION[1:0] && hits != '0;
  assign rings_nobody = state == RING && hits == '0;
  assign row = state == OWNED ? owner[ROW_BITS-1:0] : store.row;
  assign rung = state == OWNED ? column_of(owner) : hits;
  always_comb begin
    ends = 1'b0;
    if (state == RING) begin
      ends = takes || hits == '0;
      if (store.kind == DOORBELL_QUEUE_CODE_RECEIVE[1:0]) ends = flushed_hits == '0;
    end
    if (state == OWNED) ends = takes && (left & (left - 1'b1)) == '0;
  end
  assign is_quiet = state == IDLE && !has_store && !is_made;

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      state   <= IDLE;
      is_made <= 1'b0;
    end else begin
      case (state)
        RING: begin
          if (ends) state <= IDLE;
          else if (store.kind == DOORBELL_QUEUE_CODE_RECEIVE[1:0]) state <= OWNER;
        end
        OWNER: state <= OWNED;
        OWNED: if (takes) state <= ends ? IDLE : OWNER;
        MAKE:  state <= MADE;
        default: begin
          state <= IDLE;
          if (is_made && state == IDLE) state <= MAKE;
          else if (begins && state == IDLE) state <= RING;
        end
      endcase
      if (makes) is_made <= 1'b1;
      else if (state == MADE) is_made <= 1'b0;
    end
  end

  always_ff @(posedge clk) begin
    if (!rst_n || clears) is_row_used <= '0;
    else if (state == MADE) is_row_used[{new_kind, new_place[ROW_BITS-1:0]}] <= 1'b1;
  end

  always_ff @(posedge clk) begin
    if (state == RING) left <= flushed_hits;
    else if (state == OWNED && takes) left <= left & (left - 1'b1);
    if (makes) begin
      new_kind  <= made_kind[1:0];
      new_place <= made_place;
      new_page  <= page_of(made_client);
    end
  end

endmodule
