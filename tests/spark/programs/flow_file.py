"""Run a flow file on a cluster on all that is in staging: flow_file.py FILE CHECKPOINT spark://host:port"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from everything import session

from millstream.spark.flow import Flow

if __name__ == "__main__":
    file, checkpoint, where = sys.argv[1:]
    spark = session(where)
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    query = Flow.load(file).run(spark, checkpoint, once=True)
    query.awaitTermination()
    spark.stop()
    print("RESULT ended")
