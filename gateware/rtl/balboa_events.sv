// The event ring, and the interrupt behind it.
module balboa_events
  import balboa_card_pkg::*;
  import balboa_engine_pkg::*;
(
    input  logic                          clk,
    input  logic                          rst_n,
    input  logic                   [63:0] timestamp,
    // The ring, and that it begins anew.
    input  logic                   [63:0] base,
    input  logic                   [ 4:0] log2,
    input  logic                          starts,
    // The engine stops: for a reset, or with the driver to be told.
    input  logic                          stops,
    input  logic                          resets,
    input  logic                          is_fatal,
    // The driver's registers.
    input  logic                          consumes,
    input  window_event_consumer_t        consumed,
    input  logic                          clears_overflow,
    output logic                          overflow,
    output logic                   [31:0] unread,
    // An event.
    input  logic                          asks,
    input  event_t                        ask,
    output logic                          ended,
    output logic                          fatal,
    // The interrupt: due, and sent.
    input  logic                          raises,
    output logic                          raised,
    input  logic                          notifies,
    output logic                          is_idle,
    output logic                          notify_valid,
    input  logic                          notify_ready,
    // Host memory.
    output logic                          block_asks,
    output block_ask_t                    block_ask,
    input  logic                          block_ended,
    input  logic                          block_failed
);
  typedef enum logic [2:0] {
    IDLE,
    BEGIN,
    WRITTEN,
    NOTIFY,
    DONE
  } state_t;

  state_t        state;
  event_t        told;
  logic   [31:0] producer;
  logic   [31:0] consumer;
  logic          is_full;

  assign unread       = producer - consumer;
  assign is_full      = unread >= 32'd1 << log2;
  assign ended        = state == DONE;
  assign is_idle      = state == IDLE || state == DONE;
  assign fatal        = state == WRITTEN && block_ended && block_failed && !is_fatal;
  assign notify_valid = state == NOTIFY;
  assign block_asks   = state == BEGIN && !is_full;

  always_comb begin
    block_ask                = '0;
    block_ask.is_write       = 1'b1;
    block_ask.address        = entry_of(base, producer, log2);
    block_ask.block          = told;
    block_ask.block[191:128] = timestamp;
    block_ask.block[511:504] = 8'(expected_phase(producer, log2));
  end

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      state    <= IDLE;
      overflow <= 1'b0;
      raised   <= 1'b0;
    end else begin
      if (clears_overflow) overflow <= 1'b0;
      if (raises || state == BEGIN) raised <= 1'b1;
      case (state)
        BEGIN: begin
          state <= is_full ? DONE : WRITTEN;
          if (is_full) overflow <= 1'b1;
        end
        WRITTEN: if (block_ended) state <= fatal ? IDLE : DONE;
        NOTIFY:  if (notify_ready) state <= IDLE;
        default: begin
          state <= IDLE;
          if (asks) state <= BEGIN;
          else if (notifies) begin
            raised <= 1'b0;
            state  <= NOTIFY;
          end
        end
      endcase
      if (stops) begin
        // After a fatal stop the driver is told.
        raised <= !resets;
        if (resets) overflow <= 1'b0;
      end
    end
  end

  always_ff @(posedge clk) begin
    if (asks) told <= ask;
    if (starts) producer <= '0;
    else if (state == WRITTEN && block_ended) producer <= producer + 32'd1;
    if (starts) consumer <= '0;
    else if (consumes && consumed.ring == '0) consumer <= consumed.consumer;
  end
endmodule
