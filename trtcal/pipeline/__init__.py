"""The whole job: `job` does what `trtcal.toml` says, `api` has each stage for paths and objects.

model --observe(dataset)--> histograms --calibrate(method)--> calibration --quantize(plan)-->
quantized model --build(target)--> engine + log --diagnose--> findings
--compare(reference, variants, dataset)--> comparison --judge(limits)--> verdict --report--> page
"""
