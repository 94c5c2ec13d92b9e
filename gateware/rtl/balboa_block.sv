// Reads or writes one block of host memory at a time, for the parts that hold rings. A write that is posted is not waited
// for.
module balboa_block
  import balboa_engine_pkg::*;
(
    input  logic               clk,
    input  logic               rst_n,
    input  logic               asks,
    input  block_ask_t         ask,
    // It waits for host memory, and payload may have its turn; it ends once that has had it.
    output logic               waits,
    input  logic               may_end,
    // The block that was read, or that the memory is out of reach.
    output logic               ended,
    output logic               failed,
    output logic       [511:0] block,
    // The shell.
    output logic       [ 47:0] address,
    output logic               read_valid,
    input  logic               read_ready,
    output logic               write_valid,
    output logic               is_posted,
    input  logic               write_ready,
    input  logic               recv_valid,
    output logic               recv_ready,
    input  logic       [511:0] recv_data,
    input  logic               written,
    input  logic               fault_valid
);
  typedef enum logic [2:0] {
    IDLE,
    READ_ASK,
    READ_TAKE,
    WRITE_ASK,
    WRITE_END,
    DONE
  } state_t;

  state_t state;

  assign waits       = state == READ_TAKE || state == WRITE_ASK || state == WRITE_END;
  assign ended       = state == DONE && may_end;
  assign read_valid  = state == READ_ASK;
  assign write_valid = state == WRITE_ASK;
  assign recv_ready  = state == READ_TAKE;

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      state <= IDLE;
    end else begin
      case (state)
        READ_ASK:  if (read_ready) state <= READ_TAKE;
        READ_TAKE: if (recv_valid || failed) state <= DONE;
        WRITE_ASK: if (write_ready) state <= is_posted ? DONE : WRITE_END;
        WRITE_END: if (written || failed) state <= DONE;
        DONE: begin
          if (asks) state <= ask.is_write ? WRITE_ASK : READ_ASK;
          else if (may_end) state <= IDLE;
        end
        default: begin
          state <= IDLE;
          if (asks) state <= ask.is_write ? WRITE_ASK : READ_ASK;
        end
      endcase
    end
  end

  always_ff @(posedge clk) begin
    if (read_valid || write_valid) failed <= 1'b0;
    else if (fault_valid) failed <= 1'b1;
    if (asks) address <= ask.address[47:0];
    if (asks) is_posted <= ask.is_posted;
    if (asks) block <= ask.block;
    else if (recv_valid && recv_ready) block <= recv_data;
  end
endmodule
