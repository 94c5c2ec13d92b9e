# Elaborates SystemVerilog files with slang, and fails at any diagnostic.
import sys

import pyslang

driver = pyslang.driver.Driver() if hasattr(pyslang, "driver") else pyslang.Driver()
driver.addStandardArgs()
words = " ".join(["slang", "-Wextra", "-Werror", "--single-unit"] + sys.argv[1:])
if not driver.parseCommandLine(words) or not driver.processOptions() or not driver.parseAllSources():
    sys.exit(1)
compilation = driver.createCompilation()
driver.reportCompilation(compilation, False)
sys.exit(0 if driver.reportDiagnostics(False) else 1)
