/* data/csv/csv.h - data sets from CSV files. */
#ifndef LK__CSV_H
#define LK__CSV_H

#include "data/csv/records.h"
#include "data/dataset.h"

lk_status lk__csv_dataset(lk_context *context, const lk__csv_source *source, const lk__data_request *request,
                          lk_dataset **dataset);

#endif
