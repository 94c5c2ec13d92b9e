// The rings of the driver's commands and of their answers. A command is read, executed and answered before the next is
// looked at.
module balboa_admin
  import balboa_card_pkg::*;
  import balboa_engine_pkg::*;
(
    input logic clk,
    input logic rst_n,
    // The rings, and that they begin anew.
    input logic [63:0] sq_base,
    input logic [4:0] sq_log2,
    input logic [63:0] ac_base,
    input logic [4:0] ac_log2,
    input logic starts,
    input logic stops,
    input logic is_enabled,
    // The doorbell.
    input logic rings,
    input logic [31:0] told,
    output logic is_due,
    input logic begins,
    output logic is_idle,
    output logic fatal,
    input logic aborts,
    // An answer is there: the interrupt is due.
    output logic raises,
    // The command is executed; its blocks are held meanwhile.
    output logic executes,
    output logic [2:0] count,
    output logic [2:0][511:0] blocks,
    input logic executed,
    input admin_status_t status,
    input logic [31:0] result,
    input logic [7:0] generation,
    // Host memory.
    output logic block_asks,
    output block_ask_t block_ask,
    input logic block_ended,
    input logic block_failed,
    input logic [511:0] block
);
  typedef enum logic [2:0] {
    IDLE,
    BEGIN,
    FIRST,
    MORE,
    MORE_READ,
    EXECUTE,
    REFUSE,
    ANSWERED
  } state_t;

  state_t state;
  state_t next;
  logic [31:0] told_end;
  logic [31:0] consumer;
  logic [31:0] producer;
  logic [2:0] blocks_read;
  admin_header_t first;
  admin_header_t header;
  admin_completion_t completion;
  logic is_more;
  logic reads_more;
  logic is_waiting_for_more;

  assign first      = admin_header_t'(block);
  assign header     = admin_header_t'(blocks[0]);
  // While a command is executed, that part says whether something else may have its turn.
  assign is_idle    = state == IDLE || (state == EXECUTE && !executed);
  assign fatal      = (state == FIRST || state == MORE_READ || state == ANSWERED) && block_ended && block_failed;
  assign raises     = state == ANSWERED && block_ended;
  assign is_more    = state == MORE || (state == MORE_READ && block_ended);
  // A fourth block says nothing that is used.
  assign reads_more = is_more && blocks_read < count && blocks_read < 3'd3;
  assign executes   = is_more && !reads_more && !fatal;

  always_comb begin
    completion        = '0;
    completion.tag    = header.tag;
    completion.opcode = header.opcode;
    completion.status = state == EXECUTE ? status : ADMIN_STATUS_INVALID;
    completion.phase  = 8'(expected_phase(producer, ac_log2));
    if (completion.status == ADMIN_STATUS_SUCCESS) begin
      completion.result     = result;
      completion.generation = generation;
    end
  end

  always_comb begin
    next                = state;
    is_waiting_for_more = 1'b0;
    block_asks          = 1'b0;
    block_ask           = read_of(entry_of(sq_base, consumer, sq_log2));
    case (state)
      BEGIN: begin
        if (told_end == consumer || told_end - consumer > 32'd1 << sq_log2) begin
          is_waiting_for_more = 1'b1;
          next                = IDLE;
        end else begin
          block_asks = 1'b1;
          next       = FIRST;
        end
      end
      FIRST: begin
        if (block_ended) begin
          next = MORE;
          if (first.blocks == '0 || first.blocks > 8'd4 || 32'(first.blocks) > 32'd1 << sq_log2) begin
            next = REFUSE;
          end else if (32'(first.blocks) > told_end - consumer) begin
            // The rest comes with another doorbell.
            is_waiting_for_more = 1'b1;
            next                = IDLE;
          end
        end
      end
      MORE, MORE_READ: begin
        block_ask  = read_of(entry_of(sq_base, consumer + 32'(blocks_read), sq_log2));
        block_asks = reads_more && !fatal;
        if (is_more) next = reads_more ? MORE_READ : EXECUTE;
      end
      EXECUTE, REFUSE: begin
        block_ask = '{
            is_write: 1'b1,
            is_posted: 1'b0,
            address: entry_of(ac_base, producer, ac_log2),
            block: completion
        };
        if (executed || state == REFUSE) begin
          block_asks = 1'b1;
          next       = ANSWERED;
        end
      end
      ANSWERED: if (block_ended) next = IDLE;
      default:  next = begins ? BEGIN : IDLE;
    endcase
    if (fatal || aborts) next = IDLE;
  end

  always_ff @(posedge clk) begin
    if (!rst_n) state <= IDLE;
    else state <= next;
  end

  always_ff @(posedge clk) begin
    if (!rst_n || stops) is_due <= 1'b0;
    else if (rings && is_enabled) is_due <= 1'b1;
    else if (is_waiting_for_more) is_due <= 1'b0;
  end

  always_ff @(posedge clk) begin
    if (rings && is_enabled) told_end <= told;
    if (starts) consumer <= '0;
    else if (state == FIRST && next == REFUSE) consumer <= consumer + 32'd1;
    else if (executes) consumer <= consumer + 32'(count);
    if (starts) producer <= '0;
    else if (raises) producer <= producer + 32'd1;
  end

  always_ff @(posedge clk) begin
    if (state == FIRST && block_ended) begin
      blocks[0]   <= block;
      count       <= first.blocks[2:0];
      blocks_read <= 3'd1;
    end
    if (reads_more) blocks_read <= blocks_read + 3'd1;
    if (state == MORE_READ && block_ended && blocks_read == 3'd2) blocks[1] <= block;
    if (state == MORE_READ && block_ended && blocks_read == 3'd3) blocks[2] <= block;
  end
endmodule
